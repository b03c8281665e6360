// Layers between the convolutions as the native kernels see them; made by the _cpu.py of kernels/ norm,
// pool, gather and dropout.
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

// A data set [n][channels][height][width] of bytes or floats. Entry (channel, row, column) has the mean and std of
// number channel * channel_step + column * column_step.
struct Samples {
  const void* data;
  bool bytes;
  int64_t channels, height, width;
  const float *mean, *std;  // null: entries stay as they are
  int64_t channel_step, column_step;
};

// Sample n of a batch is cut out of itself with `padding` zeros around it, from rows[n] and columns[n] on, then
// mirrored where mirrored[n] is not 0. Null: not moved, not mirrored.
struct Moves {
  const int64_t *rows, *columns;
  const uint8_t* mirrored;
  int64_t padding;
};

// Each entry is dropped with probability p < 1; which ones follows from the seed and the step (kernels/dropout).
struct Dropout {
  double p;
  uint64_t seed, step;
};

}  // namespace sparsefl
