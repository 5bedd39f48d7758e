//! Batches with many adapters.

use super::*;

pub fn sixty_four_rows_with_sixteen_adapters_match_running_alone(suite: Suite) {
    let versions: Vec<LoadedVersion> = (0..16)
        .map(|number| match number {
            0 => base(),
            number => adapter_version(number),
        })
        .collect();
    let requests: Vec<GenerateRequest> = (0..64)
        .map(|i| {
            let mut request = request(prompt(5 + i % 7, i as u32 % 3), i as u64, 12);
            request.version = versions[i * 5 % 16].clone();
            request
        })
        .collect();
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let generations: Vec<Generation> = requests
        .iter()
        .map(|r| scheduler.admit(r.clone()))
        .collect();
    scheduler.finish();
    assert!(
        scheduler
            .inner
            .stats
            .batch_sizes
            .get(64)
            .is_some_and(|steps| *steps > 0)
    );
    for (request, generation) in requests.into_iter().zip(generations) {
        Reply::collect(generation).assert_agrees(&suite.run_alone(request), suite.tolerance);
    }
}
