//! The weights of a model in device memory: one buffer in the precision of the products, and one of f32 for the gains of
//! norms and the biases, which kernels read as they are.

use std::sync::Arc;

use clawhost_engine::ForwardError;
use clawhost_model::{LoadError, Model, ModelConfig, QuantizedFormat, frequencies};

use crate::attention::HeadShape;
use crate::device::{Address, Buffer, Driver, Precision, Result, Stream, Values};
use crate::layout::{ModelLayout, logits_stride};
use crate::projection::Projection;
use crate::quantized::{QuantizedLayers, largest_weight};
use crate::workspace::Workspace;

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
    pub(crate) fn allocate(
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

    /// The heads of this model.
    pub(crate) fn head_shape(&self) -> HeadShape {
        let c = &self.config;
        HeadShape {
            precision: self.precision(),
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads,
            dim: c.head_dim,
        }
    }

    /// The address of a layer's weight in the precision of the products. A quantized weight is restored, and stays there until
    /// the next one.
    pub(crate) fn weight(
        &self,
        stream: &Stream,
        work: &Workspace,
        (layer, projection): (usize, Projection),
    ) -> Result<Address> {
        let Some(quantized) = &self.quantized else {
            return Ok(self.matrix(self.layout.layers[layer].weight(projection)));
        };
        let restored = restored_weight(work, &stream.driver, &self.config)?;
        let matrix = quantized.matrix((layer, projection));
        stream.dequantize(self.precision(), quantized.format(), matrix, restored)?;
        Ok(restored)
    }
}

/// The error of a model that a device could not load.
pub(crate) fn device_error(error: ForwardError) -> LoadError {
    LoadError::Device {
        reason: error.to_string(),
    }
}

/// Room for a restored weight. Allocated when the first product needs it.
fn restored_weight(work: &Workspace, driver: &Arc<dyn Driver>, c: &ModelConfig) -> Result<Address> {
    if let Some(restored) = work.restored.get() {
        return Ok(restored.address());
    }
    let values = Values::new(driver, work.normed.precision, largest_weight(c))?;
    Ok(work.restored.get_or_init(|| values).address())
}
