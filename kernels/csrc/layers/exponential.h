// e^v for v <= 0 on vectors, to about 1 ulp; below -87.3 results are denormal, below -104 they are 0. A NaN stays one.
#pragma once
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

// v = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial (Cephes); 2^n in two factors, so that it may be denormal.
inline vf exponential(vf v) {
  constexpr float ROUND = 12582912;  // 1.5 2^23: added to a number, it leaves the nearest integer in the low bits
  v = v < -104.0f ? splat(-104.0f) : v;
  const vf shifted = v * 1.44269504f + ROUND, n = shifted - ROUND;
  const vf r = v - n * 0.693359375f - n * -2.12194440e-4f;  // ln 2 in two parts: the product with the first is exact
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const vi exponent = as_int(shifted) - as_int(splat(ROUND)), half = exponent >> 1;
  return p * as_float((half + 127) << 23) * as_float((exponent - half + 127) << 23);
}

}  // namespace
}  // namespace SPARSE_ISA
