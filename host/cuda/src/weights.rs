//! The weights of a model in device memory: one buffer in the precision of the products, and one of f32 for the gains of
//! norms and the biases, which kernels read as they are.

use std::sync::Arc;

use clawhost_engine::ForwardError;
use clawhost_model::{
    Checkpoint, LoadError, Model, ModelConfig, ParameterIndex, Quantization, QuantizedFormat,
    TensorRole, frequencies,
};

use crate::device::{Address, Buffer, Precision, Result, Stream, Values};
use crate::loading;
use crate::projection::Projection;
use crate::quantized::{QuantizedLayers, layer_bytes};

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

/// A model on the device.
#[derive(Debug)]
pub(crate) struct DeviceModel {
    pub(crate) config: ModelConfig,
    pub(crate) layout: Arc<ModelLayout>,
    /// The matrices; of a quantized model embedding and head only.
    pub(crate) values: Values,
    pub(crate) quantized: Option<QuantizedLayers>,
    /// Gains and biases, from this offset of the layout on.
    exact: Arc<Buffer<f32>>,
    exact_base: usize,
    pub(crate) frequencies: Buffer<f32>,
    pub(crate) rope_scale: f32,
}

impl DeviceModel {
    /// Uploads a model.
    pub(crate) fn new(stream: &Stream, model: &Model, precision: Precision) -> Result<Self> {
        if let Some(format) = QuantizedFormat::of(model.quantization()) {
            return Self::with_quantized(stream, model, precision, format);
        }
        let layout = ModelLayout::new(model.config());
        let exact = Buffer::new(&stream.driver, layout.total - layout.matrices)?;
        let loaded =
            Self::with_exact(stream, model, precision, (Arc::new(exact), layout.matrices))?;
        let parameters = model.parameters();
        for (place, (_, values)) in loaded.layout.tensors.iter().zip(&parameters) {
            if place.at >= loaded.layout.matrices {
                stream.upload(&loaded.exact, place.at - loaded.exact_base, values)?;
            }
        }
        stream.synchronize()?;
        Ok(loaded)
    }

    /// Uploads a quantized model.
    fn with_quantized(
        stream: &Stream,
        model: &Model,
        precision: Precision,
        format: QuantizedFormat,
    ) -> Result<Self> {
        let (config, weights) = (model.config(), model.weights());
        let layout = ModelLayout::new(config);
        let exact = Buffer::new(&stream.driver, layout.total - layout.matrices)?;
        let exact = (Arc::new(exact), layout.matrices);
        let mut loaded = Self::allocate(stream, config, (precision, layout.tables), exact)?;
        stream.upload_values(&loaded.values, layout.embed, &weights.embed)?;
        if let Some(head) = &weights.head {
            stream.upload_values(&loaded.values, layout.head, head)?;
        }
        let upload = |at: usize, values: &[f32]| {
            let (to, at) = loaded.exact_values(at);
            stream.upload(to, at, values)
        };
        for (places, layer) in layout.layers.iter().zip(&weights.layers) {
            upload(places.input_norm, &layer.input_norm)?;
            upload(places.post_norm, &layer.post_norm)?;
            if let Some((q_norm, k_norm)) = places.head_norms {
                upload(q_norm, &layer.q_norm)?;
                upload(k_norm, &layer.k_norm)?;
            }
            for (projection, bias) in [
                (Projection::Qkv, &layer.qkv_bias),
                (Projection::O, &layer.o_bias),
                (Projection::GateUp, &layer.gate_up_bias),
                (Projection::Down, &layer.down_bias),
            ] {
                if let Some(at) = places.bias(projection) {
                    upload(at, bias)?;
                }
            }
        }
        upload(layout.final_norm, &weights.final_norm)?;
        let layers = weights.layers.iter();
        let layers = layers.map(|layer| layer.quantized.as_deref());
        let layers = layers.map(|layer| layer.expect("all layers of the model are quantized"));
        loaded.quantized = Some(QuantizedLayers::new(stream, format, layers)?);
        stream.synchronize()?;
        Ok(loaded)
    }

    /// Reads a checkpoint into the memory of the device.
    pub(crate) fn from_checkpoint(
        stream: &Stream,
        checkpoint: &Checkpoint,
        precision: Precision,
    ) -> std::result::Result<Self, LoadError> {
        let config = checkpoint.config();
        let layout = ModelLayout::new(config);
        let allocate = || {
            let exact = Buffer::new(&stream.driver, layout.total - layout.matrices)?;
            let exact = (Arc::new(exact), layout.matrices);
            Self::allocate(stream, config, (precision, layout.matrices), exact)
        };
        let model = allocate().map_err(device_error)?;
        loading::upload(stream, checkpoint, &model)?;
        Ok(model)
    }

    /// Uploads the matrices of a model whose gains and biases are in `exact`, from an offset of the layout on.
    pub(crate) fn with_exact(
        stream: &Stream,
        model: &Model,
        precision: Precision,
        (exact, exact_base): (Arc<Buffer<f32>>, usize),
    ) -> Result<Self> {
        let layout = ModelLayout::new(model.config());
        let exact = (exact, exact_base);
        let values = (precision, layout.matrices);
        let loaded = Self::allocate(stream, model.config(), values, exact)?;
        for (place, (_, tensor)) in layout.tensors.iter().zip(model.parameters()) {
            if place.at < layout.matrices {
                stream.upload_values(&loaded.values, place.at, tensor)?;
            }
        }
        Ok(loaded)
    }

    /// A model whose matrices are not there yet.
    fn allocate(
        stream: &Stream,
        config: &ModelConfig,
        (precision, values): (Precision, usize),
        (exact, exact_base): (Arc<Buffer<f32>>, usize),
    ) -> Result<Self> {
        let config = config.clone();
        let layout = Arc::new(ModelLayout::new(&config));
        let driver = &stream.driver;
        let values = Values::new(driver, precision, values)?;
        let (angles, rope_scale) = frequencies(&config);
        let frequencies = Buffer::new(driver, angles.len())?;
        stream.upload(&frequencies, 0, &angles)?;
        Ok(Self {
            config,
            layout,
            values,
            quantized: None,
            exact,
            exact_base,
            frequencies,
            rope_scale,
        })
    }

    pub(crate) fn precision(&self) -> Precision {
        self.values.precision
    }

    /// The address of a matrix.
    pub(crate) fn matrix(&self, offset: usize) -> Address {
        self.values.at(offset)
    }

    /// Where values of a gain or bias are: their buffer, and their index there.
    pub(crate) fn exact_values(&self, offset: usize) -> (&Buffer<f32>, usize) {
        (&self.exact, offset - self.exact_base)
    }

    /// The address of a gain or bias.
    pub(crate) fn exact(&self, offset: usize) -> Address {
        self.exact.at(offset - self.exact_base)
    }

    /// The address of an optional gain or bias; null where there is none.
    pub(crate) fn exact_or_null(&self, offset: Option<usize>) -> Address {
        offset.map_or(Address::NULL, |offset| self.exact(offset))
    }

    /// Queries, keys and values of a token.
    pub(crate) fn qkv_width(&self) -> usize {
        Projection::Qkv.widths(&self.config).1
    }

    /// [`logits_stride`] of this model.
    pub(crate) fn logits_stride(&self) -> usize {
        logits_stride(&self.config)
    }
}

/// The error of a model that a device could not load.
pub(crate) fn device_error(error: ForwardError) -> LoadError {
    LoadError::Device {
        reason: error.to_string(),
    }
}

/// Values of a row of logits, with padding to whole packs of 16 bytes.
pub(crate) fn logits_stride(c: &ModelConfig) -> usize {
    c.vocab_size.next_multiple_of(ALIGNMENT)
}

/// Bytes of a model's weights on the device.
pub(crate) fn model_bytes(
    c: &ModelConfig,
    precision: Precision,
    quantization: Quantization,
) -> usize {
    let layout = ModelLayout::new(c);
    let exact = (layout.total - layout.matrices) * size_of::<f32>();
    exact
        + match QuantizedFormat::of(quantization) {
            None => layout.matrices * precision.bytes(),
            Some(format) => layout.tables * precision.bytes() + layer_bytes(format, c),
        }
}
