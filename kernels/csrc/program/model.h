// What the steps of a program work on: a model's arenas, their gradients, and a workspace with everything else.
#pragma once
#define SPARSE_ISA baseline
#include <type_traits>

#include "core/dispatch.h"

namespace sparsefl::program {

// A model in its arenas (sparse_engine/model/model.py). starts and offsets: first word and first packed value of each
// segment, and the end.
struct Arenas {
  const uint64_t* words;
  const int64_t *starts, *offsets;
  float *values, *rest;
  int64_t* integers;
};

// Where RigL's growth takes place: `kept` is the pattern without what was dropped, `wanted` how many entries each
// segment grows, `words` the pattern that results.
struct Growth {
  const uint64_t* kept;
  const int64_t* wanted;
  uint64_t* words;
  int64_t failed = -1;  // the segment whose gradient is not finite
};

// One pass of a list of steps over one batch.
struct Run {
  const Ops& ops;
  int threads;
  float* work;
  Arenas model;
  float *dvalues, *drest;
  float* ordered;         // room for the stored entries of any weight
  int64_t samples;        // columns of a row that belong to the batch; the others began as zeros
  const int64_t* labels;  // of the samples
  bool training;
  const uint64_t* seeds;  // of every dropout
  uint64_t pass;          // how many passes went before this one in a training
  Growth* growth;
  float* scores;  // of list `last`: gradients of all entries of prunable weights
  const int64_t* score_starts;
  double loss;      // of the batch
  int64_t correct;  // samples that got their own class
  bool bf16, dot;   // of the program: images are bfloat16, and there is an instruction for their products
};

// The workspace as images of one type: where they lie, and which of two operations is theirs. Everything else in it
// (statistics, losses, gradients of weights) is float in any case, and every place counts floats.
template <typename T> struct Images {
  static constexpr bool HALF = std::is_same_v<T, bf16>;
  const Run& r;

  T* operator[](int64_t place) const { return reinterpret_cast<T*>(r.work + place); }
  template <typename Full, typename Half> auto op(Full full, Half half) const {
    if constexpr (HALF)
      return half;
    else
      return full;
  }
};
template <typename Use> void with_images(const Run& r, Use use) {
  r.bf16 ? use(Images<bf16>{r}) : use(Images<float>{r});
}

// A step reads and writes the workspace at places that were planned for it, and the arenas.
class Step {
 public:
  virtual ~Step() = default;
  virtual void run(Run& r) const = 0;
};

inline bool finite(const float* x, int64_t n) {  // a sum of x - x is 0, or NaN
  float sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int k = 0; k < 16; k++) sums[k] += x[i + k] - x[i + k];
  for (; i < n; i++) sums[0] += x[i] - x[i];
  float all = 0;
  for (float s : sums) all += s;
  return all == 0;
}

}  // namespace sparsefl::program
