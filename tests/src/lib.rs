//! What whole-system tests share. The suites are in `tests/`, one contract a file; the cases of the field
//! reports are in the `field_*.rs` files, each as a test named after its case.
//!
//! * [`daemon`]: a real daemon, inside the test's process (so that its engine can be recounted) or as a child
//!   process (so that it can be killed); and other clients as child processes.
//! * [`raw`], [`attach`]: a client that says exactly what it is told, over gRPC and over shared memory.
//! * [`wire`]: calls as the bytes that a connection would bring, for a daemon without sockets.
//! * [`model`]: an engine with paged memory on the real client, which checks every slot attention would read.
//! * [`mixed`]: an engine of several groups and ranks that does exactly what a test says.
//! * [`oracle`]: engines of every kind, drawn from a seed, driven through random schedules.
//! * [`successor`]: one that takes over from a daemon and goes wrong at any step.
//! * [`kernels`]: checks of the CUDA kernels, on a GPU or without one.
//! * [`proxy`]: a network that breaks on demand; [`hostile`]: a daemon that does not keep the contract.
//! * [`hosts`]: several hosts on this machine, as network namespaces.
//! * [`collector`]: where traces go.
//! * [`redis`]: servers of that name for the directory.
//! * [`torture`]: a daemon and clients in processes of their own, killed and cut off at random.
//! * [`fixture`], [`keys`], [`pattern`]: namespaces and keys, and content that names where it belongs.
//! * [`fuzz`]: targets for hostile bytes; their corpus is replayed.
//! * [`conserve`]: nothing lost, nothing leaked.
//! * [`scale`]: a thousand daemons and their directory, simulated, and the formulas beside it.
//! * [`eviction`]: ways to choose what goes from a full arena, simulated on recorded loads.
//! * [`parts`]: index, allocator and re-attach of the daemon, measured without memory for the chunks' bytes.
//! * [`soak`]: mixed load for as long as one likes; [`process`], [`stall`]: what a process holds, and how long it waits.

pub mod attach;
pub mod chromium;
pub mod collector;
pub mod conserve;
pub mod daemon;
pub mod eviction;
pub mod fixture;
pub mod fuzz;
pub mod hostile;
pub mod hosts;
pub mod kernels;
pub mod keys;
pub mod mixed;
pub mod model;
pub mod oracle;
pub mod parts;
pub mod pattern;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod redis;
pub mod scale;
pub mod soak;
pub mod stall;
mod stream;
pub mod successor;
pub mod torture;
pub mod wire;
