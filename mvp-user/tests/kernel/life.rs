//! The life of the real `mvp`, as an operator starts it, in front of stand-in kube-apiservers: three hosts in network
//! namespaces ([`world`]), and clients that do not stop ([`load`]). The files beside this one start no process of `mvp`.

mod load;
mod world;

mod alternation;
mod auto;
mod black_hole;
mod direct;
mod forms;
mod local;
mod lost;
mod older;
mod planned;
mod process;
mod rudder;
