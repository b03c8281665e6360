// Vectors of the instruction set this file is compiled for. Every kernel source is compiled once per set, inside the
// namespace SPARSE_ISA, so one source serves SSE2/NEON (4 lanes), AVX2+FMA+BMI2 (8) and AVX-512 (16).
// Only C headers and compiler built-ins here: a std:: template instantiated under -mavx2 could replace the baseline's
// copy of it at link time and crash an older machine.
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(SPARSE_EMULATE_AVX512)
#include "core/emulate_avx512.h"
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) || defined(SPARSE_EMULATE_AVX512)
#define SPARSE_LANES 16
#elif defined(__AVX2__)
#define SPARSE_LANES 8
#else
#define SPARSE_LANES 4
#endif

namespace SPARSE_ISA {

constexpr int W = SPARSE_LANES;            // lanes of a vector
constexpr uint32_t ALL = (1ull << W) - 1;  // a bit for each lane
constexpr int STEPS = 64 / W;              // vectors under one word of a bitmap

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef float vf_any __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t vi_any __attribute__((vector_size(4 * W), aligned(4), may_alias));

static inline vf load(const float* p) { return *reinterpret_cast<const vf_any*>(p); }
static inline vi load(const int32_t* p) { return *reinterpret_cast<const vi_any*>(p); }
static inline void store(float* p, vf v) { *reinterpret_cast<vf_any*>(p) = v; }
static inline void store(int32_t* p, vi v) { *reinterpret_cast<vi_any*>(p) = v; }
static inline vf splat(float x) { return x - vf{}; }
static inline vi splat(int32_t x) { return x - vi{}; }
static inline vf as_float(vi v) { return reinterpret_cast<vf>(v); }
static inline vi as_int(vf v) { return reinterpret_cast<vi>(v); }
static inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }
static inline vf absolute(vf v) { return as_float(as_int(v) & 0x7fffffff); }

static inline vi iota() {
#if SPARSE_LANES == 16
  return vi{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif SPARSE_LANES == 8
  return vi{0, 1, 2, 3, 4, 5, 6, 7};
#else
  return vi{0, 1, 2, 3};
#endif
}

// The first n lanes from memory (0 <= n <= W), the others 0; reads nothing beyond.
static inline vf load_first(const float* p, int64_t n) {
  float lanes[W] = {};
  if (n) memcpy(lanes, p, n * sizeof(float));
  return load(lanes);
}
template <typename T, typename V> static inline void store_first(T* p, V v, int64_t n) {
  T lanes[W];
  store(lanes, v);
  if (n) memcpy(p, lanes, n * sizeof(T));
}
// A whole vector where the array has one left, else what is left.
static inline vf load_until(const float* p, const float* end) {
  return end - p >= W ? load(p) : load_first(p, end - p > 0 ? end - p : 0);
}
template <typename T, typename V> static inline void store_until(T* p, V v, const T* end) {
  end - p >= W ? store(p, v) : store_first(p, v, end - p > 0 ? end - p : 0);
}

static inline double sum(vf v) {  // in double, in lane order
  double total = 0;
  for (int i = 0; i < W; i++) total += v[i];
  return total;
}

static inline int popcount(uint64_t x) { return __builtin_popcountll(x); }
static inline uint64_t low_bits(int n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }

// pext collects the bits of x under m at the bottom, pdep spreads the bottom bits of x to the bits of m.
#if defined(__BMI2__)
constexpr bool FAST_PEXT = true;
static inline uint64_t pext(uint64_t x, uint64_t m) { return _pext_u64(x, m); }
static inline uint64_t pdep(uint64_t x, uint64_t m) { return _pdep_u64(x, m); }
#else
constexpr bool FAST_PEXT = false;
static inline uint64_t pext(uint64_t x, uint64_t m) {
  uint64_t out = 0;
  for (int k = 0; m; m &= m - 1, k++) out |= uint64_t((x & m & -m) != 0) << k;
  return out;
}
static inline uint64_t pdep(uint64_t x, uint64_t m) {
  uint64_t out = 0;
  for (; m; m &= m - 1, x >>= 1) out |= (x & 1) ? m & -m : 0;
  return out;
}
#endif

// compress: the lanes whose bit is set, moved to the front (what follows them is unspecified).
// expand: lane i is the next of the front lanes where bit i is set, else 0.  load_expand: the same from memory; may
// read W values, whatever the bits.
// any_below: a bit for every lane with a < b.
#if SPARSE_LANES == 16
static inline vf compress(vf v, uint32_t bits) { return (vf)_mm512_maskz_compress_ps(bits, (__m512)v); }
static inline vi compress(vi v, uint32_t bits) { return (vi)_mm512_maskz_compress_epi32(bits, (__m512i)v); }
static inline vf expand(vf v, uint32_t bits) { return (vf)_mm512_maskz_expand_ps(bits, (__m512)v); }
static inline vf load_expand(const float* p, uint32_t bits) { return expand(load(p), bits); }
static inline uint32_t any_below(vi a, vi b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
static inline uint32_t any_equal(vi a, vi b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
static inline vi lanes_of(uint32_t bits) { return (vi)_mm512_maskz_set1_epi32(bits, -1); }
// With a mask of all lanes: of the plain ones GCC 12 warns that something is uninitialized. The code is the same.
static inline vf rough_rsqrt(vf v) { return (vf)_mm512_maskz_rsqrt14_ps(ALL, (__m512)v); }
static inline vf larger(vf a, vf b) { return (vf)_mm512_maskz_max_ps(ALL, (__m512)a, (__m512)b); }
#else
constexpr int TABLE = 1 << (W == 8 ? 8 : 4);
struct Permutations {
  alignas(32) int32_t front[TABLE][W];   // compress: where the i-th set bit is
  alignas(32) int32_t spread[TABLE][W];  // expand: which set bit lane i is; negative where its bit is clear
};
static constexpr Permutations permutations() {
  Permutations t{};
  for (int bits = 0; bits < TABLE; bits++) {
    int n = 0;
    for (int i = 0; i < W; i++) {
      t.front[bits][i] = 0;
      t.spread[bits][i] = INT32_MIN;
    }
    for (int i = 0; i < W; i++)
      if (bits >> i & 1) {
        t.front[bits][n] = i;
        t.spread[bits][i] = n++;
      }
  }
  return t;
}
static constexpr Permutations PERMUTE = permutations();

#if SPARSE_LANES == 8
static inline vf permute(vf v, vi at) { return (vf)_mm256_permutevar8x32_ps((__m256)v, (__m256i)at); }
static inline vi permute(vi v, vi at) { return (vi)_mm256_permutevar8x32_epi32((__m256i)v, (__m256i)at); }
static inline vf zero_negative(vf v, vi at) {
  return (vf)_mm256_blendv_ps((__m256)v, _mm256_setzero_ps(), (__m256)as_float(at));
}
static inline uint32_t signs(vi v) { return _mm256_movemask_ps((__m256)as_float(v)); }
static inline vf rough_rsqrt(vf v) { return (vf)_mm256_rsqrt_ps((__m256)v); }
static inline vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
#else
static inline vf permute(vf v, vi at) { return as_float(__builtin_shuffle(as_int(v), at)); }
static inline vi permute(vi v, vi at) { return __builtin_shuffle(v, at); }
static inline vf zero_negative(vf v, vi at) { return as_float(as_int(v) & ~(at >> 31)); }
static inline uint32_t signs(vi v) { return (v[0] < 0) | (v[1] < 0) << 1 | (v[2] < 0) << 2 | (v[3] < 0) << 3; }
#endif
static inline vf compress(vf v, uint32_t bits) { return permute(v, load(PERMUTE.front[bits])); }
static inline vi compress(vi v, uint32_t bits) { return permute(v, load(PERMUTE.front[bits])); }
static inline vf expand(vf v, uint32_t bits) {
  const vi at = load(PERMUTE.spread[bits]);
  return zero_negative(permute(v, at), at);
}
#if SPARSE_LANES == 8
// Two halves of 4 lanes, each shuffled by bytes: a byte shuffle writes the zeros too, and costs half of a permutation
// across 8 lanes (6.5 against 8.1 ns for a word of 64 entries on Zen 3).
struct Shuffles {
  alignas(32) uint8_t half[TABLE][32];
};
static constexpr Shuffles shuffles() {
  Shuffles t{};
  for (int bits = 0; bits < TABLE; bits++)
    for (int i = 0, n = 0; i < W; i++) {
      if (i == 4) n = 0;
      const bool set = bits >> i & 1;
      for (int b = 0; b < 4; b++) t.half[bits][4 * i + b] = set ? 4 * n + b : 0x80;
      n += set;
    }
  return t;
}
static constexpr Shuffles SHUFFLE = shuffles();
static inline vf load_expand(const float* p, uint32_t bits) {
  const __m256 low = _mm256_castps128_ps256(_mm_loadu_ps(p));
  const __m256 both = _mm256_insertf128_ps(low, _mm_loadu_ps(p + popcount(bits & 15)), 1);
  const __m256i how = _mm256_load_si256(reinterpret_cast<const __m256i*>(SHUFFLE.half[bits]));
  return (vf)_mm256_shuffle_epi8(_mm256_castps_si256(both), how);
}
#else
static inline vf load_expand(const float* p, uint32_t bits) { return expand(load(p), bits); }
#endif
static inline uint32_t any_below(vi a, vi b) { return signs(a < b); }
static inline uint32_t any_equal(vi a, vi b) { return signs(a == b); }
static inline vi lanes_of(uint32_t bits) {
  vi one = 1 << iota();
  return (splat(int32_t(bits)) & one) == one;
}
#endif

// Square root of v >= 0 to about 22 bits, at twice the pace of the exact instruction: the hardware's estimate of
// 1 / sqrt(v) and one Newton step. Exact for 0.
static inline vf root(vf v) {
#if SPARSE_LANES >= 8
  const vf a = larger(v, splat(1.17549435e-38f)), y = rough_rsqrt(a);
  return (v * y) * (1.5f - 0.5f * (a * y) * y);
#else
  for (int i = 0; i < W; i++) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

}  // namespace SPARSE_ISA
