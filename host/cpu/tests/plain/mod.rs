//! A reference decoder over candle's plain differentiable operations, for comparison with its autograd.
//!
//! Optimized for readability: nothing is fused and sequences are processed one by one. In f64 it is the reference for
//! the hand-written gradients; in f32 it is the graph whose memory they are compared with.

use std::collections::HashMap;

use candle_core::{D, DType, Device, IndexOp, Tensor, Var};
use clawhost_engine::Sequence;
use clawhost_model::{Adapter, Model, ModelConfig, RopeScaling};

pub struct Plain {
    /// The trained tensors: the adapter's, or every parameter when there is none.
    pub trained: HashMap<String, Var>,
    /// All tensors, including the trained ones.
    tensors: HashMap<String, Tensor>,
    config: ModelConfig,
    scale: f64,
    dtype: DType,
}

impl Plain {
    pub fn new(model: &Model, adapter: Option<&Adapter>, dtype: DType) -> Self {
        let config = model.config().clone();
        let rank = adapter.map_or(1, |a| a.spec().rank);
        let (mut trained, mut tensors) = (HashMap::new(), HashMap::new());
        let learned = adapter.map(Adapter::tensors).unwrap_or_default();
        let frozen = adapter.is_some();
        let parameters = model.parameters().into_iter().map(|(n, v)| (n, v, frozen));
        for (name, values, frozen) in
            parameters.chain(learned.into_iter().map(|(n, v)| (n, v, false)))
        {
            let shape = shape(&config, rank, &name, values.len());
            let tensor = Tensor::from_slice(values, shape, &Device::Cpu)
                .unwrap()
                .to_dtype(dtype)
                .unwrap();
            if frozen {
                tensors.insert(name, tensor);
            } else {
                let variable = Var::from_tensor(&tensor).unwrap();
                tensors.insert(name.clone(), variable.as_tensor().clone());
                trained.insert(name, variable);
            }
        }
        let scale = adapter.map_or(0.0, |a| f64::from(a.spec().alpha) / a.spec().rank as f64);
        Self {
            trained,
            tensors,
            config,
            scale,
            dtype,
        }
    }

    fn linear(&self, x: &Tensor, name: &str) -> Tensor {
        let mut y = x
            .matmul(&self.tensors[&format!("{name}.weight")].t().unwrap())
            .unwrap();
        if let Some(bias) = self.tensors.get(&format!("{name}.bias")) {
            y = y.broadcast_add(bias).unwrap();
        }
        let part = |ab: &str| {
            self.tensors
                .get(&format!("base_model.model.{name}.lora_{ab}.weight"))
        };
        match (part("A"), part("B")) {
            (Some(a), Some(b)) => {
                let inner = x.matmul(&a.t().unwrap()).unwrap();
                let update = inner.matmul(&b.t().unwrap()).unwrap();
                (y + (update * self.scale).unwrap()).unwrap()
            }
            _ => y,
        }
    }

    fn norm(&self, x: &Tensor, name: &str) -> Tensor {
        let mean = x.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
        let root = (mean + f64::from(self.config.rms_norm_eps))
            .unwrap()
            .sqrt()
            .unwrap();
        let gain = &self.tensors[&format!("{name}.weight")];
        x.broadcast_div(&root).unwrap().broadcast_mul(gain).unwrap()
    }

    /// As [`Plain::norm`], if the family has head norms.
    fn head_norm(&self, x: Tensor, name: &str) -> Tensor {
        if self.tensors.contains_key(&format!("{name}.weight")) {
            self.norm(&x, name)
        } else {
            x
        }
    }

    /// `x [heads, t, dim]`. The angle itself is an f32 product, as in training.
    fn rotate(&self, x: &Tensor) -> Tensor {
        let (_, t, dim) = x.dims3().unwrap();
        let half = dim / 2;
        let frequencies: Vec<f32> = (0..half).map(|i| self.frequency(i)).collect();
        let angles: Vec<f32> = (0..t)
            .flat_map(|p| frequencies.iter().map(move |f| p as f32 * f))
            .collect();
        let angles = Tensor::from_vec(angles, (1, t, half), &Device::Cpu)
            .unwrap()
            .to_dtype(self.dtype)
            .unwrap();
        let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
        let low = x.narrow(2, 0, half).unwrap();
        let high = x.narrow(2, half, half).unwrap();
        let mul = |a: &Tensor, b: &Tensor| a.broadcast_mul(b).unwrap();
        let a = (mul(&low, &cos) - mul(&high, &sin)).unwrap();
        let b = (mul(&high, &cos) + mul(&low, &sin)).unwrap();
        Tensor::cat(&[a, b], 2).unwrap()
    }

    /// Radians per position of the pair `i`.
    fn frequency(&self, i: usize) -> f32 {
        let c = &self.config;
        let frequency = 1.0 / c.rope_theta.powf(2.0 * i as f32 / c.head_dim as f32);
        let Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        }) = &c.rope_scaling
        else {
            assert!(c.rope_scaling.is_none(), "not part of this reference");
            return frequency;
        };
        let exact = f64::from(frequency);
        let turns = *original as f64 * exact / std::f64::consts::TAU;
        let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        ((1.0 - share) * exact / factor + share * exact) as f32
    }

    fn attention(&self, x: &Tensor, layer: usize, mask: &Tensor) -> Tensor {
        let c = &self.config;
        let (t, heads, groups, dim) = (
            x.dim(0).unwrap(),
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
        );
        let at = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let split = |x: Tensor, n: usize| {
            x.reshape((t, n, dim))
                .unwrap()
                .transpose(0, 1)
                .unwrap()
                .contiguous()
                .unwrap()
        };
        let q = split(self.linear(x, &at("q_proj")), heads);
        let k = split(self.linear(x, &at("k_proj")), groups);
        let v = split(self.linear(x, &at("v_proj")), groups);
        let q = self.rotate(&self.head_norm(q, &at("q_norm")));
        let k = self.rotate(&self.head_norm(k, &at("k_norm")));
        let spread = |x: Tensor| {
            let all: Vec<Tensor> = (0..heads)
                .map(|h| x.i(h * groups / heads).unwrap())
                .collect();
            Tensor::stack(&all, 0).unwrap()
        };
        let (k, v) = (spread(k), spread(v));
        let scores = q
            .matmul(&k.transpose(1, 2).unwrap().contiguous().unwrap())
            .unwrap();
        let scores = (scores * (1.0 / (dim as f64).sqrt())).unwrap();
        let p = candle_nn::ops::softmax(&scores.broadcast_add(mask).unwrap(), 2).unwrap();
        let y = p
            .matmul(&v)
            .unwrap()
            .transpose(0, 1)
            .unwrap()
            .reshape((t, heads * dim))
            .unwrap();
        self.linear(&y, &at("o_proj"))
    }

    /// The logits of the rows from `first` on, except the last.
    fn logits(&self, ids: &[u32], first: usize) -> Tensor {
        let c = &self.config;
        let t = ids.len();
        let index = Tensor::new(ids, &Device::Cpu).unwrap();
        let mut x = self.tensors["model.embed_tokens.weight"]
            .index_select(&index, 0)
            .unwrap();
        let mask: Vec<f32> = (0..t)
            .flat_map(|i| (0..t).map(move |j| if j <= i { 0.0 } else { f32::NEG_INFINITY }))
            .collect();
        let mask = Tensor::from_vec(mask, (1, t, t), &Device::Cpu)
            .unwrap()
            .to_dtype(self.dtype)
            .unwrap();
        for layer in 0..c.num_hidden_layers {
            let at = |part: &str| format!("model.layers.{layer}.{part}");
            let y = self.norm(&x, &at("input_layernorm"));
            x = (x + self.attention(&y, layer, &mask)).unwrap();
            let y = self.norm(&x, &at("post_attention_layernorm"));
            let gate = self.linear(&y, &at("mlp.gate_proj")).silu().unwrap();
            let y = (gate * self.linear(&y, &at("mlp.up_proj"))).unwrap();
            x = (x + self.linear(&y, &at("mlp.down_proj"))).unwrap();
        }
        let head = if c.tie_word_embeddings {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        let x = self.norm(&x.narrow(0, first, t - 1 - first).unwrap(), "model.norm");
        x.matmul(&self.tensors[head].t().unwrap()).unwrap()
    }

    /// Log-probs of all tokens at each scored position, `[scored, vocabulary]`.
    pub fn distribution(&self, s: &Sequence<'_>) -> Tensor {
        let z = self.logits(s.tokens, s.start - 1);
        let z = if s.temperature == 1.0 {
            z
        } else {
            (z / f64::from(s.temperature)).unwrap()
        };
        candle_nn::ops::log_softmax(&z, 1).unwrap()
    }
}

/// Log-probs of one sequence's scored tokens.
pub fn recorded(distribution: &Tensor, s: &Sequence<'_>) -> Tensor {
    let targets = Tensor::new(&s.tokens[s.start..], &Device::Cpu)
        .unwrap()
        .unsqueeze(1)
        .unwrap();
    distribution
        .gather(&targets, 1)
        .unwrap()
        .squeeze(1)
        .unwrap()
}

/// The shape of a named tensor with `len` values.
fn shape(c: &ModelConfig, rank: usize, name: &str, len: usize) -> Vec<usize> {
    let inputs = match name {
        n if n.contains("norm") || n.ends_with(".bias") => return vec![len],
        n if n.contains("lora_A") => len / rank,
        n if n.contains("lora_B") => rank,
        n if n.contains("o_proj") => c.num_attention_heads * c.head_dim,
        n if n.contains("down_proj") => c.intermediate_size,
        _ => c.hidden_size,
    };
    vec![len / inputs, inputs]
}
