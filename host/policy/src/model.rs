//! The frozen decoder: loading it, and the one forward pass that serving and training share.
//!
//! Tokens of all rows are packed into one matrix, so that a batch of decoding rows and chunks of
//! prompts costs one product per weight; attention runs row by row against each row's own cache.
//! It refuses to sample, schedule or learn.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::ops::Range;
use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::cache::KvCache;
use crate::config::ModelConfig;
use crate::error::{ForwardError, LoadError};
use crate::files::ModelFiles;
use crate::lora::{Adapter, Target, write_safetensors};
use crate::ops::attention::{self, HeadKv, Shape};
use crate::ops::linear::{self, Mat, Threads};
use crate::ops::rope::{Angles, Rope};
use crate::ops::{norm, swiglu};
use crate::weights::{Weights, entries};

/// A decoder with its weights. Immutable while it serves; shared by the engine and the trainer.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    pub(crate) weights: Weights,
    pub(crate) rope: Rope,
    pub(crate) threads: Threads,
    digest: std::sync::OnceLock<String>,
}

/// New tokens of one conversation and the cache that they extend.
pub struct Row<'a> {
    /// Tokens to run; at least one.
    pub tokens: &'a [u32],
    /// What this row has seen before; extended by `tokens`.
    pub cache: &'a mut KvCache,
    /// The adapter that this row is served with.
    pub adapter: Option<&'a Adapter>,
}

/// Consecutive packed tokens under one adapter.
pub(crate) type Group<'a> = (Range<usize>, Option<&'a Adapter>);

/// Buffers of one layer over packed tokens. Training reads them in its backward pass.
#[derive(Default)]
pub(crate) struct Activations {
    /// Normalised input of attention, `[t, hidden]`.
    pub(crate) normed: Vec<f32>,
    /// Query, key, value before head norms and rotation, `[t, q + 2 k]`; kept only on request.
    pub(crate) raw: Vec<f32>,
    /// Query, key, value as attention sees them.
    pub(crate) qkv: Vec<f32>,
    /// Attention output, `[t, q]`.
    pub(crate) attended: Vec<f32>,
    /// Residual stream between attention and feed-forward; kept only on request.
    pub(crate) middle: Vec<f32>,
    /// Normalised input of the feed-forward layer.
    pub(crate) normed_ff: Vec<f32>,
    /// Gate and up, `[t, 2 f]`.
    pub(crate) gate_up: Vec<f32>,
    /// Activated product, `[t, f]`.
    pub(crate) activated: Vec<f32>,
    /// Inner LoRA values, `[t, rank]`.
    inner: Vec<f32>,
}

impl Model {
    /// Loads a checkpoint.
    ///
    /// # Errors
    /// What is missing, misshapen or not finite, by name.
    pub fn load(files: &ModelFiles) -> Result<Self, LoadError> {
        let config = ModelConfig::parse(files.config())?;
        let weights = Weights::load(&config, files)?;
        Ok(Self::with_weights(config, weights))
    }

    /// A model with small random weights (normal, sigma 0.02; output projections scaled down by the
    /// depth as in GPT-2), for tests and for the start of pretraining.
    pub fn random(config: ModelConfig, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut weights = Weights::blank(&config);
        let deep = 0.02 / (2.0 * config.num_hidden_layers as f32).sqrt();
        for (name, values) in weights.tensors_mut(&config) {
            let sigma = match name.as_str() {
                n if n.contains("norm") => continue,
                n if n.contains("o_proj") || n.contains("down_proj") => deep,
                _ => 0.02,
            };
            values
                .iter_mut()
                .for_each(|v| *v = sigma * normal(&mut rng));
        }
        Self::with_weights(config, weights)
    }

    fn with_weights(config: ModelConfig, weights: Weights) -> Self {
        let rope = Rope::new(config.head_dim, config.rope_theta);
        let threads = Threads(std::thread::available_parallelism().map_or(1, usize::from));
        Self {
            config,
            weights,
            rope,
            threads,
            digest: std::sync::OnceLock::new(),
        }
    }

    /// Limits how many threads one product may use. Default: all of the machine's.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Threads(threads.max(1));
        self
    }

    /// Its shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// sha256 of the weights, hex.
    pub fn digest(&self) -> &str {
        self.digest
            .get_or_init(|| self.weights.digest(&self.config))
    }

    /// An empty cache for a new row.
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(&self.config)
    }

    /// Named tensors in the order of full-parameter gradients.
    pub fn parameters(&self) -> Vec<(String, &[f32])> {
        entries(&self.config)
            .into_iter()
            .map(|e| {
                let values = self.weights.tensor(&e);
                (e.name, values)
            })
            .collect()
    }

    /// As [`Model::parameters`], for full-parameter training.
    pub fn parameters_mut(&mut self) -> Vec<(String, &mut [f32])> {
        self.digest = std::sync::OnceLock::new();
        self.weights.tensors_mut(&self.config)
    }

    /// Writes `config.json` and `model.safetensors` (f32) into `dir`, which must exist.
    ///
    /// # Errors
    /// Writing, with the path.
    pub fn save(&self, dir: &Path) -> Result<(), LoadError> {
        let path = dir.join("config.json");
        let write = |source| LoadError::Write {
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec_pretty(&self.config).map_err(|e| write(e.into()))?;
        std::fs::write(&path, text).map_err(write)?;
        let entries = entries(&self.config);
        write_safetensors(
            &dir.join("model.safetensors"),
            entries
                .iter()
                .map(|e| (e.name.as_str(), e.shape.as_slice(), self.weights.tensor(e))),
        )
    }

    /// Runs every row's new tokens after what its cache holds and returns the logits of each row's last
    /// token, `[rows, vocab]` row-major. Caches are extended only when all rows are valid.
    ///
    /// # Errors
    /// An empty row, a token outside the vocabulary, an adapter of another shape.
    pub fn forward(&self, rows: &mut [Row<'_>]) -> Result<Vec<f32>, ForwardError> {
        for row in rows.iter() {
            self.check_tokens(row.tokens)?;
            self.check_adapter(row.adapter)?;
        }
        let c = &self.config;
        let mut spans = Vec::with_capacity(rows.len());
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut total = 0;
        for row in rows.iter() {
            let span = total..total + row.tokens.len();
            total = span.end;
            match groups.last_mut() {
                Some((range, adapter)) if same(*adapter, row.adapter) => range.end = span.end,
                _ => groups.push((span.clone(), row.adapter)),
            }
            spans.push(span);
        }
        let mut x = Vec::with_capacity(total * c.hidden_size);
        for row in rows.iter() {
            self.embed(&mut x, row.tokens);
        }
        let positions = rows
            .iter()
            .flat_map(|r| r.cache.len()..r.cache.len() + r.tokens.len());
        let angles = self.rope.angles(positions);
        let mut act = Activations::default();
        let (q_width, k_width, stride) = self.qkv_widths();
        for layer in 0..c.num_hidden_layers {
            self.layer(
                layer,
                &mut x,
                &groups,
                &angles,
                &mut act,
                false,
                |qkv, out| {
                    for (row, span) in rows.iter_mut().zip(&spans) {
                        let qkv = &qkv[span.start * stride..span.end * stride];
                        let past = row.cache.len();
                        row.cache
                            .append(layer, &qkv[q_width..], &qkv[q_width + k_width..], stride);
                        let cache = &*row.cache;
                        attention::forward(
                            &mut out[span.start * q_width..span.end * q_width],
                            qkv,
                            stride,
                            (span.len(), past),
                            self.shape(),
                            |head| cache.head(layer, head),
                            self.threads,
                        );
                    }
                },
            );
        }
        let h = c.hidden_size;
        let mut last = Vec::with_capacity(rows.len() * h);
        for (row, span) in rows.iter_mut().zip(&spans) {
            row.cache.advance(span.len());
            last.extend_from_slice(&x[(span.end - 1) * h..span.end * h]);
        }
        norm::forward_in_place(&mut last, &self.weights.final_norm, c.rms_norm_eps);
        let mut logits = vec![0f32; rows.len() * c.vocab_size];
        linear::forward(
            &mut logits,
            c.vocab_size,
            Mat::new(&last, rows.len(), h),
            Mat::new(self.weights.head(), c.vocab_size, h),
            false,
            1.0,
            self.threads,
        );
        Ok(logits)
    }

    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<(), ForwardError> {
        let vocab = self.config.vocab_size;
        match tokens.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(ForwardError::Token { id: *id, vocab }),
            None if tokens.is_empty() => Err(ForwardError::Empty),
            None => Ok(()),
        }
    }

    pub(crate) fn check_adapter(&self, adapter: Option<&Adapter>) -> Result<(), ForwardError> {
        match adapter {
            Some(adapter) if !adapter.fits(&self.config) => Err(ForwardError::Adapter),
            _ => Ok(()),
        }
    }

    pub(crate) fn embed(&self, x: &mut Vec<f32>, tokens: &[u32]) {
        let h = self.config.hidden_size;
        for id in tokens {
            let at = *id as usize * h;
            x.extend_from_slice(&self.weights.embed[at..at + h]);
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape {
            heads: self.config.num_attention_heads,
            kv_heads: self.config.num_key_value_heads,
            dim: self.config.head_dim,
        }
    }

    /// Widths of the queries, of the keys, and of a whole row of queries, keys and values.
    pub(crate) fn qkv_widths(&self) -> (usize, usize, usize) {
        let (q, k) = (self.config.query_width(), self.config.key_width());
        (q, k, q + 2 * k)
    }

    /// One decoder layer over packed tokens: `x` is updated in place. `attend` gets the finished
    /// queries, keys and values and fills the attention output. `keep` keeps what a backward pass needs.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call site for serving, one for training"
    )]
    pub(crate) fn layer(
        &self,
        layer: usize,
        x: &mut [f32],
        groups: &[Group<'_>],
        angles: &Angles,
        act: &mut Activations,
        keep: bool,
        attend: impl FnOnce(&[f32], &mut [f32]),
    ) {
        let c = &self.config;
        let w = &self.weights.layers[layer];
        let (h, f, eps) = (c.hidden_size, c.intermediate_size, c.rms_norm_eps);
        let (q, k, stride) = self.qkv_widths();
        let t = x.len() / h;
        let threads = self.threads;

        act.normed.resize(t * h, 0.0);
        norm::forward(&mut act.normed, x, &w.input_norm, eps);
        act.qkv.resize(t * stride, 0.0);
        let normed = Mat::new(&act.normed, t, h);
        linear::forward(
            &mut act.qkv,
            stride,
            normed,
            Mat::new(&w.qkv, stride, h),
            false,
            1.0,
            threads,
        );
        for (target, at) in [(Target::Q, 0), (Target::K, q), (Target::V, q + k)] {
            lora(
                &mut act.qkv,
                (stride, at),
                &act.normed,
                layer,
                target,
                groups,
                &mut act.inner,
                (c, threads),
            );
        }
        if keep {
            act.raw.clone_from(&act.qkv);
        }
        for row in act.qkv.chunks_exact_mut(stride) {
            norm::forward_in_place(&mut row[..q], &w.q_norm, eps);
            norm::forward_in_place(&mut row[q..q + k], &w.k_norm, eps);
        }
        angles.rotate(
            &mut act.qkv,
            c.num_attention_heads + c.num_key_value_heads,
            stride,
            false,
        );

        act.attended.resize(t * q, 0.0);
        attend(&act.qkv, &mut act.attended);
        linear::forward(
            x,
            h,
            Mat::new(&act.attended, t, q),
            Mat::new(&w.o, h, q),
            true,
            1.0,
            threads,
        );
        lora(
            x,
            (h, 0),
            &act.attended,
            layer,
            Target::O,
            groups,
            &mut act.inner,
            (c, threads),
        );
        if keep {
            act.middle.clear();
            act.middle.extend_from_slice(x);
        }

        act.normed_ff.resize(t * h, 0.0);
        norm::forward(&mut act.normed_ff, x, &w.post_norm, eps);
        act.gate_up.resize(t * 2 * f, 0.0);
        linear::forward(
            &mut act.gate_up,
            2 * f,
            Mat::new(&act.normed_ff, t, h),
            Mat::new(&w.gate_up, 2 * f, h),
            false,
            1.0,
            threads,
        );
        for (target, at) in [(Target::Gate, 0), (Target::Up, f)] {
            lora(
                &mut act.gate_up,
                (2 * f, at),
                &act.normed_ff,
                layer,
                target,
                groups,
                &mut act.inner,
                (c, threads),
            );
        }
        act.activated.resize(t * f, 0.0);
        swiglu::forward(&mut act.activated, &act.gate_up, f);
        linear::forward(
            x,
            h,
            Mat::new(&act.activated, t, f),
            Mat::new(&w.down, h, f),
            true,
            1.0,
            threads,
        );
        lora(
            x,
            (h, 0),
            &act.activated,
            layer,
            Target::Down,
            groups,
            &mut act.inner,
            (c, threads),
        );
    }

    /// Causal attention of packed sequences that have no past.
    pub(crate) fn attend_packed(&self, qkv: &[f32], out: &mut [f32], spans: &[Range<usize>]) {
        let (q, k, stride) = self.qkv_widths();
        let dim = self.config.head_dim;
        for span in spans {
            let qkv = &qkv[span.start * stride..span.end * stride];
            attention::forward(
                &mut out[span.start * q..span.end * q],
                qkv,
                stride,
                (span.len(), 0),
                self.shape(),
                |head| HeadKv {
                    keys: &qkv[q + head * dim..],
                    values: &qkv[q + k + head * dim..],
                    stride,
                },
                self.threads,
            );
        }
    }
}

/// `y += scale * (x Aᵀ) Bᵀ` for each group of rows that has an adapter on this target; `y` columns begin at
/// `at` in rows of `stride`.
#[allow(clippy::too_many_arguments, reason = "the operands of one fused step")]
fn lora(
    y: &mut [f32],
    (stride, at): (usize, usize),
    x: &[f32],
    layer: usize,
    target: Target,
    groups: &[Group<'_>],
    inner: &mut Vec<f32>,
    (config, threads): (&ModelConfig, Threads),
) {
    let (inputs, outputs) = target.widths(config);
    for (range, adapter) in groups {
        let Some(adapter) = adapter else { continue };
        let Some(pair) = adapter.pair(layer, target) else {
            continue;
        };
        let (rank, t) = (adapter.spec().rank, range.len());
        inner.resize(t * rank, 0.0);
        let x = Mat::new(&x[range.start * inputs..range.end * inputs], t, inputs);
        linear::forward(
            inner,
            rank,
            x,
            Mat::new(&pair.a, rank, inputs),
            false,
            1.0,
            threads,
        );
        linear::forward(
            &mut y[range.start * stride + at..],
            stride,
            Mat::new(inner, t, rank),
            Mat::new(&pair.b, outputs, rank),
            true,
            adapter.spec().scale(),
            threads,
        );
    }
}

fn same(a: Option<&Adapter>, b: Option<&Adapter>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}

/// A standard normal draw (Box and Muller 1958).
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    use rand::RngExt;
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    ((-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::lora::LoraSpec;

    pub(crate) fn tiny() -> ModelConfig {
        ModelConfig::parse(
            br#"{"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97,
                "max_position_embeddings": 512, "tie_word_embeddings": true, "eos_token_id": 1}"#,
        )
        .unwrap()
    }

    /// An adapter that really changes the model.
    pub(crate) fn busy_adapter(config: &ModelConfig, seed: u64) -> Adapter {
        let mut adapter = Adapter::init(
            config,
            LoraSpec {
                rank: 4,
                ..LoraSpec::default()
            },
            seed,
        );
        for (i, (_, values)) in adapter.tensors_mut().into_iter().enumerate() {
            for (j, v) in values.iter_mut().enumerate() {
                *v += 0.05 * ((i * 31 + j * 7 + seed as usize) as f32).sin();
            }
        }
        adapter
    }

    fn run(model: &Model, tokens: &[u32], adapter: Option<&Adapter>) -> Vec<f32> {
        let mut cache = model.new_cache();
        model
            .forward(&mut [Row {
                tokens,
                cache: &mut cache,
                adapter,
            }])
            .unwrap()
    }

    fn close(a: &[f32], b: &[f32], bound: f32) {
        let worst = a
            .iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(a.len() == b.len() && worst <= bound, "{worst}");
    }

    #[test]
    fn token_by_token_equals_one_go_and_a_truncated_cache_replays() {
        let model = Model::random(tiny(), 3);
        let tokens: Vec<u32> = (0..90).map(|i| (i * 37 + 5) % 97).collect();
        let adapter = busy_adapter(model.config(), 1);
        let whole = run(&model, &tokens, Some(&adapter));
        let mut cache = model.new_cache();
        let mut logits = Vec::new();
        for chunk in [&tokens[..70], &tokens[70..71], &tokens[71..90]] {
            let row = Row {
                tokens: chunk,
                cache: &mut cache,
                adapter: Some(&adapter),
            };
            logits = model.forward(&mut [row]).unwrap();
        }
        close(&whole, &logits, 1e-5);
        cache.truncate(60);
        let row = Row {
            tokens: &tokens[60..],
            cache: &mut cache,
            adapter: Some(&adapter),
        };
        close(&whole, &model.forward(&mut [row]).unwrap(), 1e-5);
        assert_eq!(cache.len(), 90);
    }

    #[test]
    fn a_mixed_batch_gives_each_row_what_it_gets_alone() {
        let model = Model::random(tiny(), 4);
        let (one, two) = (
            busy_adapter(model.config(), 1),
            busy_adapter(model.config(), 2),
        );
        let prompts: Vec<Vec<u32>> = (0..5)
            .map(|r| (0..3 + 11 * r).map(|i| (i * 13 + r) % 97).collect())
            .collect();
        let adapters = [None, Some(&one), Some(&one), Some(&two), None];
        let mut caches: Vec<KvCache> = prompts.iter().map(|_| model.new_cache()).collect();
        let mut rows: Vec<Row<'_>> = prompts
            .iter()
            .zip(&mut caches)
            .zip(adapters)
            .map(|((p, cache), adapter)| Row {
                tokens: p,
                cache,
                adapter,
            })
            .collect();
        let together = model.forward(&mut rows).unwrap();
        for (i, (prompt, adapter)) in prompts.iter().zip(adapters).enumerate() {
            close(
                &together[i * 97..(i + 1) * 97],
                &run(&model, prompt, adapter),
                1e-5,
            );
        }
        assert!(run(&model, &prompts[4], Some(&one)) != run(&model, &prompts[4], Some(&two)));
    }

    #[test]
    fn bad_rows_are_refused_and_leave_the_caches_alone() {
        let model = Model::random(tiny(), 5);
        let mut cache = model.new_cache();
        let row = Row {
            tokens: &[1, 97],
            cache: &mut cache,
            adapter: None,
        };
        assert_eq!(
            model.forward(&mut [row]),
            Err(ForwardError::Token { id: 97, vocab: 97 })
        );
        let row = Row {
            tokens: &[],
            cache: &mut cache,
            adapter: None,
        };
        assert_eq!(model.forward(&mut [row]), Err(ForwardError::Empty));
        let other = Adapter::init(
            &ModelConfig {
                hidden_size: 32,
                ..tiny()
            },
            LoraSpec::default(),
            0,
        );
        let row = Row {
            tokens: &[1],
            cache: &mut cache,
            adapter: Some(&other),
        };
        assert_eq!(model.forward(&mut [row]), Err(ForwardError::Adapter));
        assert!(cache.is_empty());
    }

    #[test]
    fn a_saved_model_loads_with_the_same_digest_and_faults_are_named() {
        let model = Model::random(tiny(), 6);
        let dir = tempfile::tempdir().unwrap();
        model.save(dir.path()).unwrap();
        let files = ModelFiles::dir(dir.path()).unwrap();
        assert_eq!(Model::load(&files).unwrap().digest(), model.digest());

        let config = ModelConfig {
            num_hidden_layers: 3,
            ..tiny()
        };
        let write = |c: &ModelConfig| {
            std::fs::write(
                dir.path().join("config.json"),
                serde_json::to_vec(c).unwrap(),
            )
            .unwrap();
            Model::load(&ModelFiles::dir(dir.path()).unwrap())
                .unwrap_err()
                .to_string()
        };
        assert!(
            write(&config).contains("model.layers.2."),
            "{}",
            write(&config)
        );
        let config = ModelConfig {
            intermediate_size: 81,
            ..tiny()
        };
        assert!(
            write(&config).contains("down_proj.weight has shape [48, 80]"),
            "{}",
            write(&config)
        );
        std::fs::write(dir.path().join("model.safetensors"), b"not tensors").unwrap();
        assert!(write(&tiny()).contains("model.safetensors"));
    }
}
