// Layers between the convolutions as the native kernels see them; made by kernels/norm/_cpu.py, kernels/pool/_cpu.py.
#pragma once
#include <stdint.h>

namespace sparsefl {

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

}  // namespace sparsefl
