'use strict';
(() => {
  const live = document.getElementById('live');
  const say = (text, tone) => { live.textContent = text; live.dataset.tone = tone; };

  // Changes only what differs: what is unfolded, marked or focused stays so, and nothing jumps.
  const morph = (old, now) => {
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName || old.id !== now.id) {
      old.replaceWith(now);
      return;
    }
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== now.data) old.data = now.data;
      return;
    }
    for (const { name, value } of now.attributes) {
      if (name !== 'open' && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (name !== 'open' && !now.hasAttribute(name)) old.removeAttribute(name);
    }
    children(old, now);
  };
  // Elements with an id are found again wherever they went.
  const children = (old, now) => {
    const named = new Map([...old.children].filter((it) => it.id).map((it) => [it.id, it]));
    let at = old.firstChild;
    for (const next of [...now.childNodes]) {
      const known = next.id && named.get(next.id);
      if (known && known !== at) old.insertBefore(known, at);
      else if (!at || (!known && at.id)) { old.insertBefore(next, at); continue; }
      const here = known || at;
      at = here.nextSibling;
      morph(here, next);
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  };

  const listen = () => {
    const source = new EventSource('events');
    source.onopen = () => say('Live.', 'good');
    source.onerror = () => {
      say('Reconnecting…', 'doubtful');
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
    };
    source.addEventListener('section', (event) => {
      const { id, html } = JSON.parse(event.data);
      const element = document.getElementById(id);
      const template = document.createElement('template');
      template.innerHTML = html;
      if (element) children(element, template.content);
    });
  };
  listen();
})();
