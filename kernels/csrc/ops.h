// The native operations as a table of functions: one table per instruction set, filled by table.cpp.
// Pointers and sizes only; what they must satisfy is checked in Python. None of them keeps a pointer.
#pragma once
#include <stdint.h>

#include "conv.h"

namespace sparsefl {

// Where the tensors of a model lie: starts[l] first word of the bitmap, dense[l] first dense entry, offsets[l] first
// packed value of segment l; all have count + 1 entries.
struct Segments {
  int64_t count;
  const int64_t *starts, *dense;
};

struct Sgd {
  float lr, momentum, weight_decay, scale;
  bool nesterov;
};

struct Packed {
  const uint64_t* words;
  const float* values;
  int64_t nnz;
};

// A batch-last tensor [channels][size][batch]; groups: of channels, for group norm.
struct NormShape {
  int64_t channels, groups, size, batch;
};

struct RunningStatistics {
  float *mean, *var;  // of every channel; null: not kept
  double momentum;
};

// Windows along one axis; kernel 0: adaptive, output o has inputs floor(o in / out) to ceil((o + 1) in / out).
struct PoolAxis {
  int64_t in, out, kernel, stride, padding;
};

struct PoolShape {
  int64_t channels, batch;
  PoolAxis height, width;
};

struct Ops {
  const char* name;
  void (*masked_sgd)(float* w, const float* g, float* u, int64_t n, Sgd, int threads);
  void (*masked_sgd_through)(float* w, const float* g, float* u, const uint64_t* words, const int64_t* offsets,
                             Segments, Sgd, int threads);
  void (*masked_average)(const uint64_t* mask, int64_t num_words, const Packed* models, int num_models, float* out,
                         int64_t n, int threads);
  void (*pq_norms)(const float* values, const int64_t* offsets, int64_t count, double p, double q, double* norms,
                   int threads);
  bool (*select)(const float* x, const uint64_t* words, const int64_t* offsets, Segments, const int64_t* k,
                 bool largest, bool dense, uint64_t* chosen, int threads);
  void (*pack)(const float* dense, const uint64_t* words, const int64_t* offsets, Segments, float* out, int threads);
  void (*unpack)(const float* values, const uint64_t* words, const int64_t* offsets, Segments, float* out, int threads);
  void (*drift)(Packed a, Packed b, const int64_t* offsets_a, const int64_t* offsets_b, Segments, double* squares,
                int threads);
  void (*bitmap_count)(const uint64_t* words, Segments, int64_t* counts);
  void (*bitmap_from_mask)(const uint8_t* mask, Segments, uint64_t* words);
  void (*bitmap_to_mask)(const uint64_t* words, Segments, uint8_t* mask);
  void (*bitmap_csr)(const uint64_t* words, int64_t rows, int64_t cols, int32_t* pointers, int32_t* columns,
                     int64_t nnz);
  void (*bitmap_transpose)(const uint64_t* words, int64_t rows, int64_t cols, int32_t* pointers, int32_t* row,
                           int32_t* order, int64_t nnz);
  int64_t (*mask_encode)(const uint64_t* words, const uint64_t* known, Segments, const int64_t* dropped,
                         const int64_t* grown, uint8_t* out, int64_t capacity);
  bool (*mask_decode)(const uint8_t* in, int64_t size, const uint64_t* known, Segments, const int64_t* dropped,
                      const int64_t* grown, uint64_t* words);
  int64_t (*number_encode)(const uint8_t* in, int64_t n, int width, uint8_t* out, int64_t capacity);
  bool (*number_decode)(const uint8_t* in, int64_t size, int64_t n, int width, uint8_t* out);
  uint64_t (*checksum)(const uint8_t* p, int64_t n, uint64_t seed);
  int (*conv_tile)();
  void (*conv_planes)(ConvPlanes, const float* x, float* out, int threads);
  void (*conv_apply)(ConvPlanes, ConvWeights, ConvOutput, const float* x, const float* weights, const float* bias,
                     float* y, int threads);
  void (*conv_scatter)(ConvPlanes, ConvWeights, int64_t block, int64_t group, const float* dy, const float* weights,
                       float* dx, int threads);
  void (*conv_gradient)(ConvPlanes, ConvWeights, ConvOutput, const float* x, const float* dy, float* gradients,
                        int threads);
  void (*conv_dense_apply)(ConvPlanes, ConvDense, ConvOutput, const float* x, const float* weights, const float* bias,
                           float* y, int threads);
  void (*conv_dense_gradient)(ConvPlanes, ConvDense, ConvOutput, int64_t tiles, const float* x, const float* dy,
                              float* gradients, int threads);
  void (*conv_winograd)(ConvImages, ConvFilter, const float* x, const float* w, const float* bias, float* y,
                        int threads);
  void (*conv_winograd_gradient)(ConvImages, int64_t out, int64_t channels, const float* x, const float* dy, float* dw,
                                 int threads);
  int64_t (*conv_count)(ConvPattern, int64_t channels, int64_t block, int64_t group, int32_t* starts, int32_t* order);
  void (*conv_fill)(ConvPattern, int64_t channels, int64_t block, int64_t group, int64_t channel_bytes,
                    const int32_t* starts, const int32_t* order, uint32_t* offsets, int32_t* index);
  void (*conv_gather)(const float* values, const int32_t* index, int64_t n, float* out, int threads);
  void (*group_norm)(NormShape, const float* x, const float* gamma, const float* beta, double eps, bool relu, float* y,
                     float* mean, float* rstd, int threads);
  void (*group_norm_backward)(NormShape, const float* dy, const float* x, const float* mean, const float* rstd,
                              const float* gamma, const float* beta, bool relu, float* dx, float* dgamma, float* dbeta,
                              int threads);
  void (*batch_norm)(NormShape, const float* x, const float* gamma, const float* beta, double eps, bool relu,
                     bool training, RunningStatistics, float* y, float* mean, float* rstd, int threads);
  void (*batch_norm_backward)(NormShape, const float* dy, const float* x, const float* mean, const float* rstd,
                              const float* gamma, const float* beta, bool relu, bool training, float* dx, float* dgamma,
                              float* dbeta, int threads);
  void (*max_pool)(PoolShape, const float* x, float* y, uint8_t* index, int32_t* wide_index, int threads);
  void (*max_pool_backward)(PoolShape, const float* dy, const uint8_t* index, const int32_t* wide_index, float* dx,
                            int threads);
  void (*average_pool)(PoolShape, const float* x, float* y, int threads);
  void (*average_pool_backward)(PoolShape, const float* dy, float* dx, int threads);
  void (*add_relu)(const float* a, const float* b, float* y, int64_t n, int threads);
};

}  // namespace sparsefl

// Each source defines its functions in this namespace under the names above; the types keep one home.
namespace SPARSE_ISA {
using sparsefl::ConvDense;
using sparsefl::ConvFilter;
using sparsefl::ConvImages;
using sparsefl::ConvOutput;
using sparsefl::ConvPattern;
using sparsefl::ConvPlanes;
using sparsefl::ConvWeights;
using sparsefl::NormShape;
using sparsefl::Packed;
using sparsefl::PoolAxis;
using sparsefl::PoolShape;
using sparsefl::RunningStatistics;
using sparsefl::Segments;
using sparsefl::Sgd;
}  // namespace SPARSE_ISA
