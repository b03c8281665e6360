// bfloat16 in memory, float in registers: the loads and stores of simd.h for it, and vectors of 2 W of them as they
// lie. Rounding is to the nearest, ties to even; a NaN stays one.
#pragma once
#include "core/bf16.h"
#include "core/simd.h"

#if SPARSE_LANES == 16 && !defined(SPARSE_EMULATE_AVX512)
#define SPARSE_DOT 1  // the instruction vdpbf16ps may be there: bf16_dot() says at run time
#endif

namespace SPARSE_ISA {

using sparsefl::bf16;

typedef uint16_t vh __attribute__((vector_size(2 * W)));  // W of them
typedef uint16_t vp __attribute__((vector_size(4 * W)));  // 2 W, a full register
typedef uint16_t vp_any __attribute__((vector_size(4 * W), aligned(2), may_alias));

// In each lane the 16 bits that a float rounds to.
static inline vi rounded(vf v) {
  const vi bits = as_int(v), even = (bits >> 16) & 1;
  const vi near = (bits + 0x7fff + even) >> 16, nan = (bits >> 16) | 0x40, is_nan = v != v;
  return ((near & ~is_nan) | (nan & is_nan)) & 0xffff;
}

static inline vf load(const bf16* p) {
#if SPARSE_LANES == 16 && !defined(SPARSE_EMULATE_AVX512)
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return as_float((vi)_mm512_maskz_cvtepu16_epi32(ALL, half) << 16);
#elif SPARSE_LANES == 8
  return as_float((vi)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))) << 16);
#else
  vh half;
  memcpy(&half, p, sizeof(half));
  return as_float(__builtin_convertvector(half, vi) << 16);
#endif
}
static inline void store(bf16* p, vf v) {
#if SPARSE_LANES == 16 && !defined(SPARSE_EMULATE_AVX512)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(ALL, (__m512i)rounded(v)));
#elif SPARSE_LANES == 8
  const __m256i r = (__m256i)rounded(v);
  const __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
#else
  const vh half = __builtin_convertvector(rounded(v), vh);
  memcpy(p, &half, sizeof(half));
#endif
}
static inline vf load_first(const bf16* p, int64_t n) {
  bf16 lanes[W] = {};
  if (n) memcpy(lanes, p, n * sizeof(bf16));
  return load(lanes);
}
static inline void store_first(bf16* p, vf v, int64_t n) {
  bf16 lanes[W];
  store(lanes, v);
  if (n) memcpy(p, lanes, n * sizeof(bf16));
}
static inline vf load_until(const bf16* p, const bf16* end) {
  return end - p >= W ? load(p) : load_first(p, end - p > 0 ? end - p : 0);
}
static inline void store_until(bf16* p, vf v, const bf16* end) {
  end - p >= W ? store(p, v) : store_first(p, v, end - p > 0 ? end - p : 0);
}
static inline float to_float(bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static inline bf16 to_bf16(float x) { return {uint16_t(rounded(splat(x))[0])}; }

// Pairs. low(a, b) and high(a, b) interleave 2 W entries of a and of b, within every four lanes, so that lane i of a
// result holds a's and b's of one place; with a = 0 that is b as floats. both() puts what belongs to the two back.
static inline vp load_pairs(const bf16* p) { return *reinterpret_cast<const vp_any*>(p); }
#if SPARSE_LANES == 16 && !defined(SPARSE_EMULATE_AVX512)
static inline vp low(vp a, vp b) { return (vp)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b); }
static inline vp high(vp a, vp b) { return (vp)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b); }
static inline vp both(vf low, vf high) {
  return (vp)_mm512_packus_epi32((__m512i)rounded(low), (__m512i)rounded(high));
}
#elif SPARSE_LANES == 8
static inline vp low(vp a, vp b) { return (vp)_mm256_unpacklo_epi16((__m256i)a, (__m256i)b); }
static inline vp high(vp a, vp b) { return (vp)_mm256_unpackhi_epi16((__m256i)a, (__m256i)b); }
static inline vp both(vf low, vf high) {
  return (vp)_mm256_packus_epi32((__m256i)rounded(low), (__m256i)rounded(high));
}
#else
static inline vp interleaved(vp a, vp b, int from) {
  vp out = {};
  for (int i = 0; i < W; i++) {
    const int at = i / 4 * 8 + from + i % 4;
    out[2 * i] = a[at], out[2 * i + 1] = b[at];
  }
  return out;
}
static inline vp low(vp a, vp b) { return interleaved(a, b, 0); }
static inline vp high(vp a, vp b) { return interleaved(a, b, 4); }
static inline vp both(vf low, vf high) {
  const vi l = rounded(low), h = rounded(high);
  vp out = {};
  for (int i = 0; i < W; i++) out[i / 4 * 8 + i % 4] = l[i], out[i / 4 * 8 + 4 + i % 4] = h[i];
  return out;
}
#endif
static inline vf as_float(vp v) { return reinterpret_cast<vf>(v); }

// sum + in every lane the products of its two entries of a and of b. The instruction by its name: this file is compiled
// for processors that lack it, too.
static inline vf dot(vf sum, vp a, vp b) {
#if defined(SPARSE_DOT)
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
  return sum;
#else
  (void)a, (void)b;
  __builtin_trap();  // nobody asks for it
  return sum;
#endif
}

}  // namespace SPARSE_ISA
