// Models as the native kernels see them; made by kernels/native.py.
#pragma once
#include <stdint.h>

namespace sparsefl {

// Where the tensors of a model lie: starts[l] first word of the bitmap, dense[l] first dense entry of segment l; both
// have count + 1 entries. So have the offsets that operations take beside it: the first packed value of each segment.
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

}  // namespace sparsefl
