#pragma once

#include <cstdint>

#include "octavo/formats/format.h"

/// Normal random numbers that depend on (seed, stream, index) and on nothing else: not on the order
/// they are made in, the number of threads or the device. CPU and GPU give the same bits.
///
///   word  = the 32 bits of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1,
///   2,
///           3", SC 2011) with key seed and counter (index / 4, stream), the (index mod 4)th of
///           four
///   value = fp32(deviation * z),  z = the normal quantile of (word + 1/2) / 2^32
///
/// z is Wichura's AS 241 (PPND16, Applied Statistics 37, 1988: good to about 1e-16), in fp64 with
/// every operation rounded on its own. 32 bits reach from -6.34 to 6.34 deviations.
namespace octavo::kernels {

struct NormalSource {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  ///< one a tensor
  double deviation = 1.0;
};

/// Four words of Philox4x32-10: those of the indices 4 * block to 4 * block + 3.
struct PhiloxWords {
  std::uint32_t word[4];
};

OCTAVO_HOST_DEVICE inline PhiloxWords philox(std::uint64_t seed, std::uint64_t stream,
                                             std::uint64_t block) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  std::uint32_t key0 = static_cast<std::uint32_t>(seed),
                key1 = static_cast<std::uint32_t>(seed >> 32);
  PhiloxWords x{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * x.word[0], product1 = kMultiplier1 * x.word[2];
    x = {{static_cast<std::uint32_t>(product1 >> 32) ^ x.word[1] ^ key0,
          static_cast<std::uint32_t>(product1),
          static_cast<std::uint32_t>(product0 >> 32) ^ x.word[3] ^ key1,
          static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return x;
}

// c[0] + c[1] x + ... + c[N - 1] x^(N - 1).
template <class A, int N>
OCTAVO_HOST_DEVICE inline double normal_polynomial(const double (&c)[N], double x) {
  double sum = c[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = A::subtract(A::multiply(sum, x), -c[i]);
  return sum;
}

// log(x) of a normal number 0 < x < 1, good to about 1e-16: with x = m 2^e, m within
// [1/sqrt(2), sqrt(2)) and s = (m - 1) / (m + 1), it is e log(2) + 2 (s + s^3 / 3 + s^5 / 5 + ...).
template <class A>
OCTAVO_HOST_DEVICE inline double normal_logarithm(double x) {
  constexpr double kLog2 = 0.69314718055994530942, kRoot2 = 1.41421356237309504880;
  constexpr double kSeries[] = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,
                                1.0 / 9.0,  1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0,
                                1.0 / 17.0, 1.0 / 19.0, 1.0 / 21.0};
  int exponent = 0;
  while (x < 0.5) {
    x = A::multiply(x, 2.0);
    --exponent;
  }
  x = A::multiply(x, 2.0);
  --exponent;
  if (x >= kRoot2) {
    x = A::multiply(x, 0.5);
    ++exponent;
  }
  const double s = A::divide(A::subtract(x, 1.0), A::subtract(x, -1.0));
  const double series = normal_polynomial<A>(kSeries, A::multiply(s, s));
  return A::subtract(A::multiply(exponent, kLog2), -A::multiply(A::multiply(2.0, s), series));
}

/// z of one word. Arithmetic: HostArithmetic or the device's (kernels/adamw.h says why).
template <class Arithmetic>
OCTAVO_HOST_DEVICE inline double normal_quantile(std::uint32_t word) {
  using A = Arithmetic;
  constexpr double kA[] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                           1.9715909503065514427e+3, 1.3731693765509461125e+4,
                           4.5921953931549871457e+4, 6.7265770927008700853e+4,
                           3.3430575583588128105e+4, 2.5090809287301226727e+3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e+1,
                           6.8718700749205790830e+2,
                           5.3941960214247511077e+3,
                           2.1213794301586595867e+4,
                           3.9307895800092710610e+4,
                           2.8729085735721942674e+4,
                           5.2264952788528545610e+3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  // Exact: 33 bits.
  const double p = A::multiply(A::subtract(word, -0.5), 1.0 / 4294967296.0);
  const double q = A::subtract(p, 0.5);
  if (q >= -0.425 && q <= 0.425) {
    const double r = A::subtract(0.180625, A::multiply(q, q));
    return A::divide(A::multiply(q, normal_polynomial<A>(kA, r)), normal_polynomial<A>(kB, r));
  }
  // At most 4.79, so AS 241's third case (above 5) does not occur.
  const double tail = q < 0 ? p : A::subtract(1.0, p);
  const double r = A::subtract(A::square_root(A::subtract(0.0, normal_logarithm<A>(tail))), 1.6);
  const double z = A::divide(normal_polynomial<A>(kC, r), normal_polynomial<A>(kD, r));
  return q < 0 ? -z : z;
}

/// The four values of the indices 4 * block to 4 * block + 3.
template <class Arithmetic>
OCTAVO_HOST_DEVICE inline void normal_values(const NormalSource& source, std::uint64_t block,
                                             float (&value)[4]) {
  const PhiloxWords words = philox(source.seed, source.stream, block);
  for (int i = 0; i < 4; ++i) {
    value[i] = static_cast<float>(
        Arithmetic::multiply(source.deviation, normal_quantile<Arithmetic>(words.word[i])));
  }
}

}  // namespace octavo::kernels
