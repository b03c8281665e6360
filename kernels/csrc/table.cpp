#include "declare.h"

#define SPARSE_TEXT(x) #x
#define SPARSE_NAME(x) SPARSE_TEXT(x)

namespace SPARSE_ISA {

extern const sparsefl::Ops ops;
const sparsefl::Ops ops = {
    SPARSE_NAME(SPARSE_ISA),
    masked_sgd,
    masked_sgd_through,
    masked_average,
    pq_norms,
    select,
    pack,
    unpack,
    drift,
    bitmap_count,
    bitmap_from_mask,
    bitmap_to_mask,
    bitmap_csr,
    bitmap_transpose,
    mask_encode,
    mask_decode,
    number_encode,
    number_decode,
    checksum,
    conv_tile,
    conv_planes,
    conv_apply,
    conv_scatter,
    conv_gradient,
    conv_dense_apply,
    conv_dense_gradient,
    conv_winograd,
    conv_winograd_gradient,
    conv_count,
    conv_fill,
    conv_gather,
    group_norm,
    group_norm_backward,
    batch_norm,
    batch_norm_backward,
    max_pool,
    max_pool_backward,
    average_pool,
    average_pool_backward,
    add_relu,
};

}  // namespace SPARSE_ISA
