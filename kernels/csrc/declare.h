// The operations of one instruction set, declared from the types of the table so that both cannot differ.
#pragma once
#include <type_traits>

#include "ops.h"

#define SPARSE_DECLARE(op) std::remove_pointer_t<decltype(sparsefl::Ops::op)> op;
namespace SPARSE_ISA {
SPARSE_DECLARE(masked_sgd)
SPARSE_DECLARE(masked_sgd_through)
SPARSE_DECLARE(masked_average)
SPARSE_DECLARE(pq_norms)
SPARSE_DECLARE(select)
SPARSE_DECLARE(pack)
SPARSE_DECLARE(unpack)
SPARSE_DECLARE(drift)
SPARSE_DECLARE(bitmap_count)
SPARSE_DECLARE(bitmap_from_mask)
SPARSE_DECLARE(bitmap_to_mask)
SPARSE_DECLARE(bitmap_csr)
SPARSE_DECLARE(bitmap_transpose)
SPARSE_DECLARE(mask_encode)
SPARSE_DECLARE(mask_decode)
SPARSE_DECLARE(number_encode)
SPARSE_DECLARE(number_decode)
SPARSE_DECLARE(checksum)
SPARSE_DECLARE(conv_tile)
SPARSE_DECLARE(conv_planes)
SPARSE_DECLARE(conv_apply)
SPARSE_DECLARE(conv_scatter)
SPARSE_DECLARE(conv_gradient)
SPARSE_DECLARE(conv_dense_apply)
SPARSE_DECLARE(conv_dense_gradient)
SPARSE_DECLARE(conv_winograd)
SPARSE_DECLARE(conv_winograd_gradient)
SPARSE_DECLARE(conv_count)
SPARSE_DECLARE(conv_fill)
SPARSE_DECLARE(conv_gather)
SPARSE_DECLARE(group_norm)
SPARSE_DECLARE(group_norm_backward)
SPARSE_DECLARE(batch_norm)
SPARSE_DECLARE(batch_norm_backward)
SPARSE_DECLARE(max_pool)
SPARSE_DECLARE(max_pool_backward)
SPARSE_DECLARE(average_pool)
SPARSE_DECLARE(average_pool_backward)
SPARSE_DECLARE(add_relu)
}  // namespace SPARSE_ISA
#undef SPARSE_DECLARE
