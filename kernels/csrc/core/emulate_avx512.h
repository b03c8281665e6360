// AVX-512 intrinsics on a machine without them, through SIMDe (Debian: libsimde-dev), so that the 16-lane code can be
// tested anywhere. For tests alone (SPARSE_EMULATE_AVX512 in CMakeLists.txt): it is slow.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

// What SIMDe 0.7 lacks; a newer one's version is replaced, too.
static inline __m512 emulated_maskz_expand_ps(uint16_t bits, __m512 v) {
  __m512 out = {};
  for (int i = 0, from = 0; i < 16; i++)
    if (bits >> i & 1) out[i] = v[from++];
  return out;
}
static inline uint16_t emulated_cmplt_epi32_mask(__m512i a, __m512i b) { return _mm512_cmpgt_epi32_mask(b, a); }
static inline __m512 emulated_permute_ps(__m512 v, int how) {
  __m512 out = {};
  for (int i = 0; i < 16; i++) out[i] = v[(i & ~3) | (how >> 2 * (i & 3) & 3)];
  return out;
}
// As inexact as the instruction may be (2^-14): 14 bits of the mantissa, the others cut off.
static inline __m512 emulated_maskz_rsqrt14_ps(uint16_t bits, __m512 v) {
  __m512 out = {};
  for (int i = 0; i < 16; i++) {
    const float y = float(1 / __builtin_sqrt(double(v[i])));
    uint32_t cut;
    memcpy(&cut, &y, 4);
    cut &= ~511u;
    if (bits >> i & 1) memcpy(reinterpret_cast<char*>(&out) + 4 * i, &cut, 4);
  }
  return out;
}
#undef _mm512_maskz_expand_ps
#undef _mm512_cmplt_epi32_mask
#undef _mm512_permute_ps
#undef _mm512_maskz_rsqrt14_ps
#define _mm512_maskz_expand_ps emulated_maskz_expand_ps
#define _mm512_cmplt_epi32_mask emulated_cmplt_epi32_mask
#define _mm512_permute_ps emulated_permute_ps
#define _mm512_maskz_rsqrt14_ps emulated_maskz_rsqrt14_ps
