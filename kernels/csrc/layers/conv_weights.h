// How the sparse convolution kernels read their weights: four at a time, each with the offset of its input.
#pragma once

#include "layers/conv_tiles.h"

namespace SPARSE_ISA {
namespace {

// Where four weights find their inputs.
struct Four {
  const float* at[4];
  Four(const float* base, const uint32_t* offsets) {
    uint64_t low, high;  // two loads for four offsets
    memcpy(&low, offsets, 8);
    memcpy(&high, offsets + 2, 8);
    const char* x = reinterpret_cast<const char*>(base);
    at[0] = reinterpret_cast<const float*>(x + uint32_t(low));
    at[1] = reinterpret_cast<const float*>(x + (low >> 32));
    at[2] = reinterpret_cast<const float*>(x + uint32_t(high));
    at[3] = reinterpret_cast<const float*>(x + (high >> 32));
  }
};

// Four consecutive weights, in one load; get<k> is the k-th in every lane.
struct Weights {
  vf all;
  explicit Weights(const float* p) : all(repeat(p)) {}
  template <int K> vf get() const { return fours<K, K, K, K>(all, all); }
};

static inline const float* moved(const float* x, uint32_t bytes) {
  return reinterpret_cast<const float*>(reinterpret_cast<const char*>(x) + bytes);
}

// A pass: what its kernels know of it.
struct Pass {
  const Tiles& tiles;
  const ConvWeights& w;
  const int32_t* at;
  Pass(const Tiles& tiles, const ConvWeights& w) : tiles(tiles), w(w), at(w.at ? w.at : w.starts) {}
};

// A pointer in a register of its own, so that what follows is at constant distances from it: GCC would rather keep
// every sum with `row` in a register, and has none left for what a visit needs.
static SPARSE_INLINE const float* one_address(const float* p) {
#if defined(__GNUC__)
  asm("" : "+r"(p));
#endif
  return p;
}

// The visits of a pass, copied from it: what a kernel writes might be the pass, as far as the compiler knows, and it
// would read each field again for each visit.
struct VisitList {
  const int32_t *const starts, *const order, *const at;
  const uint32_t* const offsets;
  const int64_t count;
  explicit VisitList(const ConvWeights& w)
      : starts(w.starts), order(w.order), at(w.at ? w.at : w.starts), offsets(w.offsets), count(w.visits) {}

  // Fetches what a later visit has among the packed values. Visits go by length, so they lie anywhere, and come from
  // far where few tiles use them.
  SPARSE_INLINE void fetch_ahead(const float* values, int64_t k) const {
    constexpr int64_t VISITS = 6, LINE = 16;
    const int64_t next = smaller(k + VISITS, count - 1);
    const float* first = values + at[next];
    const float* end = first + (starts[next + 1] - starts[next]) + LINE - 1;
    for (; first < end; first += LINE) __builtin_prefetch(first);
  }
};

}  // namespace
}  // namespace SPARSE_ISA
