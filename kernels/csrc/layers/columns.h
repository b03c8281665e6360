// The last axis of a batch-last tensor, as vectors: a row of columns is taken up to four vectors at a time. Where the
// columns are no multiple of the lanes, the last vector overlaps the one before it and both compute the same; fewer
// columns than lanes go one by one. Nothing beyond the row is read or written. What is summed up over rows is kept in
// slots, one per lane, so that nothing counts twice; `compact` makes columns of them.
#pragma once
#include "core/simd_bf16.h"

namespace SPARSE_ISA {
namespace {

// A byte for each lane.
#if SPARSE_LANES == 8
inline vi load_bytes(const uint8_t* p) {
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline void store_bytes(uint8_t* p, vi v) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
#else
typedef uint8_t vb __attribute__((vector_size(W)));
inline vi load_bytes(const uint8_t* p) {
#if defined(__AVX512F__)  // GCC 12 would convert lane by lane
  return (vi)_mm512_maskz_cvtepu8_epi32(ALL, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  vb bytes;
  memcpy(&bytes, p, W);
  return __builtin_convertvector(bytes, vi);
#endif
}
inline void store_bytes(uint8_t* p, vi v) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(ALL, (__m512i)v));
  return;
#endif
  const vb bytes = __builtin_convertvector(v, vb);
  memcpy(p, &bytes, W);
}
#endif

template <int COUNT> struct Columns {
  static constexpr int K = COUNT;
  int64_t at[K], slot;
  Columns(int64_t first, int64_t columns) : slot(first) {
    for (int k = 0; k < K; k++) at[k] = first + k * W < columns - W ? first + k * W : columns - W;
  }
  vf get(const float* p, int k) const { return load(p + at[k]); }
  void put(float* p, int k, vf v) const { store(p + at[k], v); }
  vf get(const bf16* p, int k) const { return load(p + at[k]); }
  void put(bf16* p, int k, vf v) const { store(p + at[k], v); }
  vi get(const int32_t* p, int k) const { return load(p + at[k]); }
  void put(int32_t* p, int k, vi v) const { store(p + at[k], v); }
  vi get(const uint8_t* p, int k) const { return load_bytes(p + at[k]); }
  void put(uint8_t* p, int k, vi v) const { store_bytes(p + at[k], v); }
};

struct OneColumn {
  static constexpr int K = 1;
  int64_t at[1], slot;
  vf get(const float* p, int) const { return vf{p[at[0]]}; }
  void put(float* p, int, vf v) const { p[at[0]] = v[0]; }
  vf get(const bf16* p, int) const { return vf{to_float(p[at[0]])}; }
  void put(bf16* p, int, vf v) const { p[at[0]] = to_bf16(v[0]); }
  template <typename T> vi get(const T* p, int) const { return vi{int32_t(p[at[0]])}; }
  template <typename T> void put(T* p, int, vi v) const { p[at[0]] = T(v[0]); }
};

// Calls use(c) with Columns or OneColumn until every column had its turn.
template <typename Use> inline void each_block(int64_t columns, Use use) {
  if (columns < W) {
    for (int64_t i = 0; i < columns; i++) use(OneColumn{{i}, i * W});
    return;
  }
  int64_t i = 0;
  for (; i + 3 * W < columns; i += 4 * W) use(Columns<4>(i, columns));
  for (; i + W < columns; i += 2 * W) use(Columns<2>(i, columns));
  for (; i < columns; i += W) use(Columns<1>(i, columns));
}

inline int64_t num_slots(int64_t columns) { return columns < W ? columns * W : (columns + W - 1) / W * W; }

// Slots to columns, in place.
template <typename T> inline void compact(T* p, int64_t columns) {
  const int64_t whole = columns / W * W;
  if (columns < W)
    for (int64_t i = 0; i < columns; i++) p[i] = p[i * W];
  else if (whole < columns)
    memmove(p + whole, p + 2 * whole + W - columns, (columns - whole) * sizeof(T));
}

// relu(v), and what of dv passes it: a NaN stays one.
inline vf positive(vf v) { return as_float(as_int(v) & ~(v < 0.0f)); }
inline vf where_positive(vf v, vf dv) { return as_float(as_int(dv) & ~(v <= 0.0f)); }

template <bool VALUE> struct Flag {
  static constexpr bool value = VALUE;
};
template <typename Use> inline void with_flag(bool value, Use use) { value ? use(Flag<true>()) : use(Flag<false>()); }

}  // namespace
}  // namespace SPARSE_ISA
