//! The CUDA backend of the inference engine, for NVIDIA GPUs: bf16 storage, f32 arithmetic, own kernels and cuBLASLt.
//!
//! - [`CudaBackend`]: implements [`clawhost_engine::Backend`]; [`devices`] lists the GPUs.
//! - `device`: memory, streams, launches and graphs of a device; unsafe code is there and in `kernels`.
//! - `kernels`: the kernels of `kernels/*.cu` with their argument types.
//! - `shared`: what a backend, its runners and its training sessions share; `lease`: what they take from it for a while.
//! - `transfer`: tensors between the host and flat buffers of the device.
//! - `weights`, `quantized`, `adapters`, `projection`, `workspace`: what is where in device memory; `loading` fills it from a checkpoint.
//! - [`CudaMemory`]: how much device memory a model takes, before it is loaded; `plan`: what the kernels run and what fits.
//! - `layers`, `attention`, `head`: the forward pass of serving, scoring and training.
//! - `runner`, `sampler`: steps of the engine, recorded as graphs; tokens are sampled on the device.
//! - `scoring`, `backward`, `session`: log-probs, gradients, AdamW; `train_state`, `kept_state`: what a session has on the
//!   device, and leaves there for the next one.
//! - `reducer`: the gradients of training on several GPUs, summed by NCCL; [`replicate`] makes one backend of them.
//!
//! The kernels are compiled ahead of time by `cargo xtask kernels`; building this crate needs no CUDA, and a program with it
//! starts without a driver. The tests compile the same sources as C++ and run them on the CPU.

mod adapters;
mod attention;
mod backend;
mod backward;
mod device;
mod head;
mod inputs;
mod kept_state;
mod kernels;
mod layers;
mod lease;
mod loading;
mod memory;
mod packing;
mod plan;
mod projection;
mod quantized;
mod reducer;
mod runner;
mod sampler;
mod scoring;
mod session;
mod shared;
mod train_state;
mod transfer;
mod weights;
mod workspace;

pub use backend::CudaBackend;
pub use device::Precision;
pub use device::cuda::nccl::{LIBRARY as NCCL, check as check_nccl};
pub use device::cuda::{
    DRIVER, DeviceInfo, check_libraries, devices, driver_version, has_driver, memory,
};
pub use memory::{CudaMemory, TrainingPassMemory};
pub use reducer::replicate;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
mod kernel_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
mod tests;
