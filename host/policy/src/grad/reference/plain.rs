//! A plain decoder over candle's differentiable operations.

use std::collections::HashMap;

use candle_core::{D, Device, IndexOp, Tensor, Var};

use crate::ModelConfig;
use crate::grad::Sequence;
use crate::lora::Adapter;
use crate::model::Model;

/// A plain decoder over candle variables.
pub(super) struct Plain {
    pub(super) vars: HashMap<String, Var>,
    config: ModelConfig,
    scale: f64,
}

impl Plain {
    pub(super) fn new(model: &Model, adapter: Option<&Adapter>) -> Self {
        let c = model.config().clone();
        let mut vars = HashMap::new();
        for entry in crate::weights::entries(&c) {
            let values = model.weights.tensor(&entry);
            let t = Tensor::from_slice(values, entry.shape.as_slice(), &Device::Cpu).unwrap();
            vars.insert(entry.name.clone(), Var::from_tensor(&t).unwrap());
        }
        for (name, values) in adapter.map(Adapter::tensors).unwrap_or_default() {
            let rank = adapter.unwrap().spec().rank;
            let other = values.len() / rank;
            let shape = if name.contains("lora_A") {
                (rank, other)
            } else {
                (other, rank)
            };
            let t = Tensor::from_slice(values, shape, &Device::Cpu).unwrap();
            vars.insert(name, Var::from_tensor(&t).unwrap());
        }
        let scale = adapter.map_or(0.0, |a| f64::from(a.spec().scale()));
        Self {
            vars,
            config: c,
            scale,
        }
    }

    fn linear(&self, x: &Tensor, name: &str) -> Tensor {
        let y = x
            .matmul(&self.vars[&format!("{name}.weight")].t().unwrap())
            .unwrap();
        let part = |ab: &str| {
            self.vars
                .get(&format!("base_model.model.{name}.lora_{ab}.weight"))
        };
        match (part("A"), part("B")) {
            (Some(a), Some(b)) => {
                let update = x
                    .matmul(&a.t().unwrap())
                    .unwrap()
                    .matmul(&b.t().unwrap())
                    .unwrap();
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
        let gain = self.vars[&format!("{name}.weight")].as_tensor();
        x.broadcast_div(&root).unwrap().broadcast_mul(gain).unwrap()
    }

    /// `x [heads, t, dim]`.
    fn rotate(&self, x: &Tensor) -> Tensor {
        let (_, t, dim) = x.dims3().unwrap();
        let half = dim / 2;
        let angle = |p: usize, i: usize| {
            p as f32 * self.config.rope_theta.powf(-2.0 * i as f32 / dim as f32)
        };
        let table = |f: fn(f32) -> f32| {
            let v: Vec<f32> = (0..t)
                .flat_map(|p| (0..half).map(move |i| (p, i)))
                .map(|(p, i)| f(angle(p, i)))
                .collect();
            Tensor::from_vec(v, (1, t, half), &Device::Cpu).unwrap()
        };
        let (cos, sin) = (table(f32::cos), table(f32::sin));
        let low = x.narrow(2, 0, half).unwrap();
        let high = x.narrow(2, half, half).unwrap();
        let mul = |a: &Tensor, b: &Tensor| a.broadcast_mul(b).unwrap();
        let a = (mul(&low, &cos) - mul(&high, &sin)).unwrap();
        let b = (mul(&high, &cos) + mul(&low, &sin)).unwrap();
        Tensor::cat(&[a, b], 2).unwrap()
    }

    fn logits(&self, ids: &[u32]) -> Tensor {
        let c = &self.config;
        let (t, heads, groups, dim) = (
            ids.len(),
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
        );
        let ids = Tensor::new(ids, &Device::Cpu).unwrap();
        let embed = &self.vars["model.embed_tokens.weight"];
        let mut x = embed.index_select(&ids, 0).unwrap();
        let mask: Vec<f32> = (0..t)
            .flat_map(|i| (0..t).map(move |j| if j <= i { 0.0 } else { f32::NEG_INFINITY }))
            .collect();
        let mask = Tensor::from_vec(mask, (1, t, t), &Device::Cpu).unwrap();
        for l in 0..c.num_hidden_layers {
            let at = |part: &str| format!("model.layers.{l}.{part}");
            let y = self.norm(&x, &at("input_layernorm"));
            let split = |x: Tensor, n: usize| {
                x.reshape((t, n, dim))
                    .unwrap()
                    .transpose(0, 1)
                    .unwrap()
                    .contiguous()
                    .unwrap()
            };
            let q = split(self.linear(&y, &at("self_attn.q_proj")), heads);
            let k = split(self.linear(&y, &at("self_attn.k_proj")), groups);
            let v = split(self.linear(&y, &at("self_attn.v_proj")), groups);
            let q = self.rotate(&self.norm(&q, &at("self_attn.q_norm")));
            let k = self.rotate(&self.norm(&k, &at("self_attn.k_norm")));
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
            let p = candle_nn::ops::softmax(&scores.broadcast_add(&mask).unwrap(), 2).unwrap();
            let y = p
                .matmul(&v)
                .unwrap()
                .transpose(0, 1)
                .unwrap()
                .reshape((t, heads * dim))
                .unwrap();
            x = (x + self.linear(&y, &at("self_attn.o_proj"))).unwrap();
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
        let x = self.norm(&x, "model.norm");
        x.matmul(&self.vars[head].t().unwrap()).unwrap()
    }

    /// Log-probabilities and entropies of one sequence's scored tokens.
    pub(super) fn scored(&self, s: &Sequence<'_>) -> (Tensor, Tensor, Tensor) {
        let n = s.tokens.len() - s.start;
        let z = self.logits(s.tokens).narrow(0, s.start - 1, n).unwrap();
        let z = (z / f64::from(s.temperature)).unwrap();
        let lp = candle_nn::ops::log_softmax(&z, 1).unwrap();
        let targets = Tensor::new(&s.tokens[s.start..], &Device::Cpu)
            .unwrap()
            .unsqueeze(1)
            .unwrap();
        let picked = lp.gather(&targets, 1).unwrap().squeeze(1).unwrap();
        let entropy = (lp.exp().unwrap() * &lp)
            .unwrap()
            .sum(1)
            .unwrap()
            .neg()
            .unwrap();
        (picked, entropy, lp)
    }
}
