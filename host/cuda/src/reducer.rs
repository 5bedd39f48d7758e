//! Several GPUs as one backend: NCCL sums the gradients of their training sessions.

use std::any::Any;
use std::sync::{Arc, Mutex};

use clawhost_engine::backend::{Backend, GradientReducer, HostReducer, TrainSession};
use clawhost_engine::{ForwardError, ReplicatedBackend};

use crate::CudaBackend;
use crate::device::cuda::nccl::{self, Communicators};
use crate::device::lock;
use crate::session::CudaTrainSession;

/// Replicas on these GPUs, by their numbers, as one backend. Where there is no NCCL the host sums the gradients, which is
/// slower and otherwise the same.
///
/// # Panics
/// Without a GPU.
pub fn replicate(gpus: Vec<(usize, CudaBackend)>) -> Arc<dyn Backend> {
    let (ordinals, mut backends): (Vec<usize>, Vec<CudaBackend>) = gpus.into_iter().unzip();
    if backends.len() == 1 {
        return Arc::new(backends.remove(0));
    }
    let backends = backends.into_iter();
    let backends = backends
        .map(|one| Arc::new(one) as Arc<dyn Backend>)
        .collect();
    Arc::new(match nccl::check() {
        Ok(()) => ReplicatedBackend::new(backends, NcclReducer::new(ordinals)),
        Err(error) => {
            tracing::warn!(%error, "gradients of several GPUs are summed in host memory");
            ReplicatedBackend::new(backends, HostReducer)
        }
    })
}

/// Sums the gradients of sessions on these GPUs, in their order.
#[derive(Debug)]
pub(crate) struct NcclReducer {
    ordinals: Vec<usize>,
    /// Made by the first sum, because they take memory of the GPUs.
    communicators: Mutex<Option<Communicators>>,
}

impl NcclReducer {
    pub(crate) fn new(ordinals: Vec<usize>) -> Self {
        Self {
            ordinals,
            communicators: Mutex::default(),
        }
    }
}

impl GradientReducer for NcclReducer {
    fn reduce(&self, sessions: &mut [Box<dyn TrainSession>]) -> Result<(), ForwardError> {
        let gradients: Vec<_> = sessions
            .iter()
            .map(|session| {
                let session: &dyn Any = &**session;
                let session = session.downcast_ref::<CudaTrainSession>();
                let session = session.expect("the replicas are GPUs");
                session.device_gradients()
            })
            .collect();
        let mut communicators = lock(&self.communicators);
        if communicators.is_none() {
            *communicators = Some(Communicators::new(&self.ordinals)?);
        }
        let communicators = communicators.as_ref().expect("they have just been made");
        communicators.sum(&gradients)
    }
}
