//! Matrix products by cuBLASLt.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use cudarc::cublaslt::{result as lt, sys as lt_sys};

use cudarc::driver::sys;

use super::recording::nothing_records;
use crate::device::{Address, Operand, Precision, Product, lock};

type Result<T> = std::result::Result<T, lt::CublasError>;

/// What the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ProductKey {
    sizes: [usize; 3],
    strides: [usize; 3],
    transposed: [bool; 2],
    precisions: [Precision; 2],
    accumulates: bool,
    alignments: [u32; 3],
}

/// The largest power of two up to 16 that divides an address.
fn alignment(at: Address) -> u32 {
    1 << at.0.trailing_zeros().min(4)
}

fn data_type(precision: Precision) -> lt_sys::cudaDataType {
    match precision {
        Precision::F32 => lt_sys::cudaDataType_t::CUDA_R_32F,
        Precision::Bf16 => lt_sys::cudaDataType_t::CUDA_R_16BF,
    }
}

/// Bytes of workspace per stream; NVIDIA recommends 32 MiB for compute capability 9.0.
pub(crate) const WORKSPACE: usize = 32 << 20;
/// Most products that are remembered.
const MAX_PRODUCTS: usize = 8192;

/// How a product is computed.
struct PlannedProduct {
    description: Description,
    algorithm: lt_sys::cublasLtMatmulAlgo_t,
}

// SAFETY: the objects of cuBLASLt are read by any number of threads once they are made, and destroyed by the last owner.
unsafe impl Send for PlannedProduct {}
// SAFETY: as above.
unsafe impl Sync for PlannedProduct {}

/// The objects that describe a product to cuBLASLt.
struct Description {
    operation: lt_sys::cublasLtMatmulDesc_t,
    layouts: [lt_sys::cublasLtMatrixLayout_t; 3],
    preference: lt_sys::cublasLtMatmulPreference_t,
}

impl Description {
    /// # Safety
    /// The attribute has values of this type.
    unsafe fn prefer<T>(
        &self,
        attribute: lt_sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<()> {
        let pointer = std::ptr::from_ref(value).cast();
        // SAFETY: the object is alive, and the value has the caller's type.
        unsafe {
            lt::set_matmul_pref_attribute(self.preference, attribute, pointer, size_of::<T>())
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: the objects are this description's.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.operation);
            for layout in self.layouts {
                let _ = lt::destroy_matrix_layout(layout);
            }
            let _ = lt::destroy_matmul_pref(self.preference);
        }
    }
}

/// The library, with the products seen.
pub(super) struct Blas {
    handle: lt_sys::cublasLtHandle_t,
    products: Mutex<HashMap<ProductKey, Arc<PlannedProduct>>>,
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle is this one's. A failure leaves nothing to do.
        let _ = unsafe { lt::destroy_handle(self.handle) };
    }
}

impl Blas {
    /// Starts the library in the current context.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            handle: lt::create_handle()?,
            products: Mutex::default(),
        })
    }

    /// cuBLASLt has column-major matrices: the transpose of c is that of b times that of a.
    ///
    /// # Safety
    /// As for [`crate::device::Driver::multiply`]; `workspace` is of this stream, and has [`WORKSPACE`] bytes.
    pub(super) unsafe fn product(
        &self,
        (stream, workspace): (sys::CUstream, sys::CUdeviceptr),
        p: &Product,
    ) -> Result<()> {
        // A row-major [rows, columns] is a column-major [columns, rows], and its transpose is marked as such.
        let is_transposed = |operand: &Operand| operand.column != 1;
        let stride = |operand: &Operand| operand.row.max(operand.column);
        let key = ProductKey {
            sizes: [p.m, p.n, p.k],
            strides: [stride(&p.a), stride(&p.b), p.c_stride],
            transposed: [is_transposed(&p.a), is_transposed(&p.b)],
            precisions: [p.inputs, p.output],
            accumulates: p.beta != 0.0,
            alignments: [alignment(p.b.at), alignment(p.a.at), alignment(p.c)],
        };
        let known = lock(&self.products).get(&key).map(Arc::clone);
        // The library loads the kernels of a product when it first runs.
        let (planned, _quiet) = match known {
            Some(planned) => (planned, None),
            None => {
                let quiet = nothing_records();
                (self.plan(key)?, quiet)
            }
        };
        let [b, a, c] = planned.description.layouts;
        let pointer = |at: Address| at.0 as usize as *mut c_void;
        // SAFETY: the objects are alive, and the addresses are the caller's.
        unsafe {
            lt::matmul(
                self.handle,
                planned.description.operation,
                std::ptr::from_ref(&p.alpha).cast(),
                std::ptr::from_ref(&p.beta).cast(),
                pointer(p.b.at),
                b,
                pointer(p.a.at),
                a,
                pointer(p.c),
                c,
                pointer(p.c),
                c,
                &raw const planned.algorithm,
                pointer(Address(workspace)),
                WORKSPACE,
                stream.cast(),
            )
        }
    }

    /// The description and algorithm of a product.
    fn plan(&self, key: ProductKey) -> Result<Arc<PlannedProduct>> {
        let description = self.describe(&key)?;
        let [b, a, c] = description.layouts;
        // SAFETY: the objects are alive.
        let found = unsafe {
            lt::get_matmul_algo_heuristic(
                self.handle,
                description.operation,
                b,
                a,
                c,
                c,
                description.preference,
            )
        }?;
        let planned = Arc::new(PlannedProduct {
            description,
            algorithm: found.algo,
        });
        let mut products = lock(&self.products);
        // Passes have many numbers of tokens.
        if products.len() >= MAX_PRODUCTS {
            products.clear();
        }
        products.insert(key, Arc::clone(&planned));
        Ok(planned)
    }

    fn describe(&self, key: &ProductKey) -> Result<Description> {
        use lt_sys::cublasLtMatmulDescAttributes_t as Attribute;
        use lt_sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let [m, n, k] = key.sizes.map(|size| size as u64);
        let [a_stride, b_stride, c_stride] = key.strides.map(|stride| stride as i64);
        let [inputs, output] = key.precisions.map(data_type);
        let layout = |(rows, columns): (u64, u64), transposed: bool, stride| {
            let (rows, columns) = if transposed {
                (columns, rows)
            } else {
                (rows, columns)
            };
            lt::create_matrix_layout(inputs, rows, columns, stride)
        };
        let description = Description {
            operation: lt::create_matmul_desc(
                lt_sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                lt_sys::cudaDataType_t::CUDA_R_32F,
            )?,
            layouts: [
                layout((n, k), key.transposed[1], b_stride)?,
                layout((k, m), key.transposed[0], a_stride)?,
                lt::create_matrix_layout(output, n, m, c_stride)?,
            ],
            preference: lt::create_matmul_pref()?,
        };
        let operations = [
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, key.transposed[1]),
            (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, key.transposed[0]),
        ];
        for (attribute, transposed) in operations {
            let value = i32::from(transposed);
            // SAFETY: the object is alive and the attribute is a 32-bit integer; 1 is CUBLAS_OP_T.
            unsafe {
                lt::set_matmul_desc_attribute(
                    description.operation,
                    attribute,
                    (&raw const value).cast(),
                    size_of::<i32>(),
                )?;
            }
        }
        let [b, a, c] = key.alignments;
        let alignments = [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
        ];
        for (attribute, value) in alignments {
            // SAFETY: the attribute is a 32-bit integer.
            unsafe { description.prefer(attribute, &value) }?;
        }
        if key.precisions[1] == Precision::Bf16 {
            // Partial sums stay in f32.
            let schemes = Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
            let in_f32 = lt_sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
            // SAFETY: the attribute is a 32-bit mask.
            unsafe { description.prefer(schemes, &(in_f32 as u32)) }?;
        }
        let most = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the attribute is a size.
        unsafe { description.prefer(most, &WORKSPACE) }?;
        Ok(description)
    }
}
