//! Steps in which an adapter version takes the place of another.

use std::sync::Arc;

use clawhost_engine::SamplingParams;
use clawhost_engine::backend::{
    AdapterSlot, Backend, Batch, BlockId, RequestId, Row, Runner, SamplerSpec,
};
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Model, TrainedWeights};

use super::CudaRunner;
use crate::device::Driver;
use crate::device::emulated::EmulatedDriver;
use crate::{CudaBackend, Precision};

#[test]
fn a_published_version_needs_no_other_recorded_work() {
    let driver: Arc<dyn Driver> = EmulatedDriver::new().expect("these tests need a C++ compiler");
    let model = Arc::new(Model::random(tiny(), 1));
    let backend = CudaBackend::on(driver, model, Precision::F32).unwrap();
    let load = |seed| {
        let weights = TrainedWeights::from(Arc::new(random_adapter(&tiny(), seed)));
        backend.load_adapter(&weights).unwrap()
    };
    let (old, new) = (load(1), load(2));
    let mut runner = CudaRunner::new(Arc::clone(&backend.shared), 4).unwrap();
    for request in 0..2 {
        let spec = SamplerSpec {
            params: SamplingParams::default(),
            seed: 1,
            prompt: Arc::from([]),
            eos_token_ids: Arc::from([]),
            banned: Vec::new(),
            recorded: None,
        };
        runner.add_request(RequestId(request), spec);
    }
    let blocks = [[BlockId(0)], [BlockId(1)]];
    let mut step = |slots: [AdapterSlot; 2], computed| {
        let row = |request: usize| Row {
            request: RequestId(request as u64),
            tokens: &[7],
            computed,
            blocks: &blocks[request],
            slot: slots[request],
            sample: true,
            bitmask: None,
        };
        let rows = [row(0), row(1)];
        let batch = Batch {
            copies: &[],
            rows: &rows,
        };
        runner.step(batch).unwrap();
        let mut keys: Vec<_> = runner.graphs.keys().copied().collect();
        keys.sort_by_key(|key| key.adapters);
        keys
    };
    let before = step([old, old], 0);
    assert_eq!(before.len(), 1);
    assert_eq!(step([old, new], 1), before);
    assert_eq!(step([new, new], 2), before);
}
