//! Where the tensors of a model lie in a flat buffer of device memory. Allocates nothing.

use clawhost_model::{ModelConfig, ParameterIndex, TensorRole};

use crate::projection::Projection;

/// Offsets are multiples of this, so that every tensor can be read 16 bytes at a time.
const ALIGNMENT: usize = 8;

/// Where a named tensor lies in a flat buffer: `rows` of `width` values, `stride` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TensorPlace {
    pub(crate) at: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

/// Offsets of a layer's tensors; `None` where the model has no such tensor.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerLayout {
    weights: [usize; 4],
    biases: [Option<usize>; 4],
    pub(crate) input_norm: usize,
    pub(crate) post_norm: usize,
    /// Of queries and of keys.
    pub(crate) head_norms: Option<(usize, usize)>,
}

impl LayerLayout {
    pub(crate) fn weight(&self, projection: Projection) -> usize {
        self.weights[projection as usize]
    }

    pub(crate) fn bias(&self, projection: Projection) -> Option<usize> {
        self.biases[projection as usize]
    }
}

/// Offsets of all tensors: first the matrices, to which weight decay applies, then gains and biases.
#[derive(Debug, Clone)]
pub(crate) struct ModelLayout {
    pub(crate) embed: usize,
    pub(crate) head: usize,
    pub(crate) layers: Vec<LayerLayout>,
    pub(crate) final_norm: usize,
    /// End of embedding and head.
    pub(crate) tables: usize,
    /// End of the matrices.
    pub(crate) matrices: usize,
    pub(crate) total: usize,
    /// The named tensors, in the order of [`Model::parameters`].
    pub(crate) tensors: Vec<TensorPlace>,
}

impl ModelLayout {
    pub(crate) fn new(c: &ModelConfig) -> Self {
        let mut total = 0;
        let mut place = |len: usize| {
            let at = total;
            total += len.next_multiple_of(ALIGNMENT);
            at
        };
        let table = c.vocab_size * c.hidden_size;
        let embed = place(table);
        let head = if c.tie_word_embeddings {
            embed
        } else {
            place(table)
        };
        let tables = place(0);
        let mut layers = vec![LayerLayout::default(); c.num_hidden_layers];
        for layer in &mut layers {
            layer.weights = Projection::ALL.map(|projection| {
                let (inputs, outputs) = projection.widths(c);
                place(inputs * outputs)
            });
        }
        let matrices = place(0);
        for layer in &mut layers {
            layer.input_norm = place(c.hidden_size);
            layer.post_norm = place(c.hidden_size);
            layer.head_norms = c
                .has_head_norms()
                .then(|| (place(c.head_dim), place(c.head_dim)));
            layer.biases = Projection::ALL.map(|projection| {
                let has = projection
                    .targets()
                    .iter()
                    .any(|target| c.has_bias(*target));
                has.then(|| place(projection.widths(c).1))
            });
        }
        let final_norm = place(c.hidden_size);
        let mut layout = Self {
            embed,
            head,
            layers,
            final_norm,
            tables,
            matrices,
            total,
            tensors: Vec::new(),
        };
        layout.tensors = layout.places(c);
        layout
    }

    fn places(&self, c: &ModelConfig) -> Vec<TensorPlace> {
        let parameters = ParameterIndex::new(c);
        let count = parameters.head() + usize::from(!c.tie_word_embeddings);
        let empty = TensorPlace {
            at: 0,
            rows: 0,
            width: 0,
            stride: 0,
        };
        let mut places = vec![empty; count];
        let mut set = |index: usize, at: usize, width: usize| {
            places[index] = TensorPlace {
                at,
                rows: 1,
                width,
                stride: width,
            };
        };
        let table = c.vocab_size * c.hidden_size;
        set(parameters.embed(), self.embed, table);
        set(parameters.final_norm(), self.final_norm, c.hidden_size);
        if !c.tie_word_embeddings {
            set(parameters.head(), self.head, table);
        }
        for (l, layer) in self.layers.iter().enumerate() {
            let mut named = |role, at, width| {
                if let Some(index) = parameters.index(l, role) {
                    set(index, at, width);
                }
            };
            named(TensorRole::InputNorm, layer.input_norm, c.hidden_size);
            named(TensorRole::PostNorm, layer.post_norm, c.hidden_size);
            if let Some((q, k)) = layer.head_norms {
                named(TensorRole::QNorm, q, c.head_dim);
                named(TensorRole::KNorm, k, c.head_dim);
            }
            for projection in Projection::ALL {
                let mut column = 0;
                for target in projection.targets() {
                    let (inputs, outputs) = clawhost_model::TargetLayer::widths(*target, c);
                    let at = layer.weight(projection) + column * inputs;
                    named(TensorRole::Weight(*target), at, inputs * outputs);
                    if let Some(bias) = layer.bias(projection) {
                        named(TensorRole::Bias(*target), bias + column, outputs);
                    }
                    column += outputs;
                }
            }
        }
        places
    }
}

/// Values of a row of logits, with padding to whole packs of 16 bytes.
pub(crate) fn logits_stride(c: &ModelConfig) -> usize {
    c.vocab_size.next_multiple_of(ALIGNMENT)
}
