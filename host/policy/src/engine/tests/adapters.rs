//! Many adapters in one batch.

use super::*;

#[test]
fn sixteen_adapters_over_sixty_four_rows_give_each_request_what_it_gets_alone() {
    let versions: Vec<Served> = (0..16)
        .map(|number| match number {
            0 => base(),
            number => version(number),
        })
        .collect();
    let requests: Vec<GenerateRequest> = (0..64)
        .map(|i| {
            let mut request = request(prompt(5 + i % 7, i as u32 % 3), i as u64, 12);
            request.served = versions[i * 5 % 16].clone();
            request
        })
        .collect();
    let mut bench = Bench::new(EngineOptions::default());
    let generations: Vec<Generation> = requests.iter().map(|r| bench.admit(r.clone())).collect();
    bench.finish();
    assert!(
        bench
            .batcher
            .stats
            .batch_sizes
            .get(64)
            .is_some_and(|steps| *steps > 0)
    );
    for (request, generation) in requests.into_iter().zip(generations) {
        Reply::all(generation).agrees(&alone(request));
    }
}
