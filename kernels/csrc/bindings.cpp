// Python bindings, the only file that knows Python. Arguments are addresses and sizes, checked by the callers in
// kernels/*/_cpu.py; nothing is converted, so nothing is written into a temporary. The GIL is released in every call.
#define SPARSE_ISA baseline
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>

#include "dispatch.h"
#include "memory.h"

namespace nb = nanobind;
using namespace sparsefl;
using Address = uintptr_t;

namespace {

template <typename T> T* at(Address a) { return reinterpret_cast<T*>(a); }

Segments segments(int64_t count, Address starts, Address dense) {
  return {count, at<const int64_t>(starts), at<const int64_t>(dense)};
}

// Whole numbers out of a list or tuple. nanobind would fill a std::vector where nothing may throw, and end the process
// when there is no memory for it.
void read(nb::handle list, int64_t* out, size_t count) {
  if (nb::len(list) != count) throw nb::value_error("expected another number of whole numbers");
  for (size_t i = 0; i < count; i++) out[i] = nb::cast<int64_t>(list[i]);
}

template <size_t N> std::array<int64_t, N> numbers(nb::handle list) {
  std::array<int64_t, N> found;
  read(list, found.data(), N);
  return found;
}

// A buffer of the pool as DLPack hands tensors on. Deleted by whoever has it last, without Python.
struct Managed {
  nb::dlpack::dltensor tensor;
  void* unused = nullptr;
  void (*deleter)(Managed*) = [](Managed* self) { delete self; };
  std::array<int64_t, 8> shape;

  explicit Managed(nb::handle sizes) {
    tensor.ndim = int32_t(nb::len(sizes));
    if (size_t(tensor.ndim) > shape.size()) throw nb::value_error("expected at most 8 dimensions");
    read(sizes, shape.data(), tensor.ndim);
    int64_t count = 1;
    for (int32_t i = 0; i < tensor.ndim; i++) {
      if (shape[i] < 0) throw nb::value_error("expected sizes from 0");
      if (__builtin_mul_overflow(count, shape[i], &count)) count = INT64_MAX;
    }
    tensor.data = want(count, sizeof(float), "a tensor");
    tensor.device = {nb::device::cpu::value, 0};
    tensor.dtype = nb::dtype<float>();
    tensor.shape = shape.data();
  }
  Managed(const Managed&) = delete;
  ~Managed() { give(tensor.data); }
};

// For torch's from_dlpack, which renames the capsule that it takes.
nb::object empty(nb::handle shape) {
  auto made = std::make_unique<Managed>(shape);
  PyObject* capsule = PyCapsule_New(made.get(), "dltensor", [](PyObject* self) {
    if (PyCapsule_IsValid(self, "dltensor")) delete static_cast<Managed*>(PyCapsule_GetPointer(self, "dltensor"));
  });
  if (!capsule) throw nb::python_error();
  made.release();
  return nb::steal(capsule);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);
  using Release = nb::call_guard<nb::gil_scoped_release>;

  m.def("isas", [] {
    std::vector<std::string> names;
    for (const Ops* o : available()) names.push_back(o->name);
    return names;
  });
  m.def("isa", [] { return std::string(ops().name); });
  m.def("set_isa", &choose);

  m.def("empty", &empty);
  m.def("pooled", &pooled);
  m.def("bytes_taken", &bytes_taken);
  m.def("bytes_idle", &bytes_idle);
  m.def("trim", &trim);

  m.def(
      "masked_sgd",
      [](Address w, Address g, Address u, int64_t n, float lr, float momentum, float weight_decay, bool nesterov,
         float scale, int threads) {
        ops().masked_sgd(at<float>(w), at<const float>(g), at<float>(u), n,
                         {lr, momentum, weight_decay, scale, nesterov}, threads);
      },
      Release());
  m.def(
      "masked_sgd_through",
      [](Address w, Address g, Address u, Address words, Address offsets, int64_t count, Address starts, Address dense,
         float lr, float momentum, float weight_decay, bool nesterov, float scale, int threads) {
        ops().masked_sgd_through(at<float>(w), at<const float>(g), at<float>(u), at<const uint64_t>(words),
                                 at<const int64_t>(offsets), segments(count, starts, dense),
                                 {lr, momentum, weight_decay, scale, nesterov}, threads);
      },
      Release());
  m.def("masked_average", [](Address mask, int64_t num_words, nb::handle words, nb::handle values, nb::handle nnz,
                             Address out, int64_t n, int threads) {
    std::vector<Packed> models(nb::len(words));
    for (size_t j = 0; j < models.size(); j++)
      models[j] = {at<const uint64_t>(nb::cast<Address>(words[j])), at<const float>(nb::cast<Address>(values[j])),
                   nb::cast<int64_t>(nnz[j])};
    nb::gil_scoped_release release;
    ops().masked_average(at<const uint64_t>(mask), num_words, models.data(), int(models.size()), at<float>(out), n,
                         threads);
  });
  m.def(
      "pq_norms",
      [](Address values, Address offsets, int64_t count, double p, double q, Address norms, int threads) {
        ops().pq_norms(at<const float>(values), at<const int64_t>(offsets), count, p, q, at<double>(norms), threads);
      },
      Release());
  m.def(
      "select",
      [](Address x, Address words, Address offsets, int64_t count, Address starts, Address dense, Address k,
         bool largest, bool x_is_dense, Address chosen, int threads) {
        return ops().select(at<const float>(x), at<const uint64_t>(words), at<const int64_t>(offsets),
                            segments(count, starts, dense), at<const int64_t>(k), largest, x_is_dense,
                            at<uint64_t>(chosen), threads);
      },
      Release());
  m.def(
      "pack",
      [](Address from, Address words, Address offsets, int64_t count, Address starts, Address dense, Address out,
         int threads) {
        ops().pack(at<const float>(from), at<const uint64_t>(words), at<const int64_t>(offsets),
                   segments(count, starts, dense), at<float>(out), threads);
      },
      Release());
  m.def(
      "unpack",
      [](Address from, Address words, Address offsets, int64_t count, Address starts, Address dense, Address out,
         int threads) {
        ops().unpack(at<const float>(from), at<const uint64_t>(words), at<const int64_t>(offsets),
                     segments(count, starts, dense), at<float>(out), threads);
      },
      Release());
  m.def(
      "drift",
      [](Address words_a, Address values_a, Address offsets_a, int64_t nnz_a, Address words_b, Address values_b,
         Address offsets_b, int64_t nnz_b, int64_t count, Address starts, Address dense, Address squares, int threads) {
        ops().drift({at<const uint64_t>(words_a), at<const float>(values_a), nnz_a},
                    {at<const uint64_t>(words_b), at<const float>(values_b), nnz_b}, at<const int64_t>(offsets_a),
                    at<const int64_t>(offsets_b), segments(count, starts, dense), at<double>(squares), threads);
      },
      Release());
  m.def(
      "bitmap_count",
      [](Address words, int64_t count, Address starts, Address dense, Address counts) {
        ops().bitmap_count(at<const uint64_t>(words), segments(count, starts, dense), at<int64_t>(counts));
      },
      Release());
  m.def(
      "bitmap_from_mask",
      [](Address mask, int64_t count, Address starts, Address dense, Address words) {
        ops().bitmap_from_mask(at<const uint8_t>(mask), segments(count, starts, dense), at<uint64_t>(words));
      },
      Release());
  m.def(
      "bitmap_to_mask",
      [](Address words, int64_t count, Address starts, Address dense, Address mask) {
        ops().bitmap_to_mask(at<const uint64_t>(words), segments(count, starts, dense), at<uint8_t>(mask));
      },
      Release());
  m.def(
      "bitmap_csr",
      [](Address words, int64_t rows, int64_t cols, Address pointers, Address columns, int64_t nnz) {
        ops().bitmap_csr(at<const uint64_t>(words), rows, cols, at<int32_t>(pointers), at<int32_t>(columns), nnz);
      },
      Release());
  m.def(
      "bitmap_transpose",
      [](Address words, int64_t rows, int64_t cols, Address pointers, Address row, Address order, int64_t nnz) {
        ops().bitmap_transpose(at<const uint64_t>(words), rows, cols, at<int32_t>(pointers), at<int32_t>(row),
                               at<int32_t>(order), nnz);
      },
      Release());

  m.def(
      "mask_encode",
      [](Address words, Address known, int64_t count, Address starts, Address dense, Address dropped, Address grown,
         Address out, int64_t capacity) {
        return ops().mask_encode(at<const uint64_t>(words), at<const uint64_t>(known), segments(count, starts, dense),
                                 at<const int64_t>(dropped), at<const int64_t>(grown), at<uint8_t>(out), capacity);
      },
      Release());
  m.def(
      "mask_decode",
      [](Address in, int64_t size, Address known, int64_t count, Address starts, Address dense, Address dropped,
         Address grown, Address words) {
        return ops().mask_decode(at<const uint8_t>(in), size, at<const uint64_t>(known), segments(count, starts, dense),
                                 at<const int64_t>(dropped), at<const int64_t>(grown), at<uint64_t>(words));
      },
      Release());
  m.def(
      "number_encode",
      [](Address in, int64_t n, int width, Address out, int64_t capacity) {
        return ops().number_encode(at<const uint8_t>(in), n, width, at<uint8_t>(out), capacity);
      },
      Release());
  m.def(
      "number_decode",
      [](Address in, int64_t size, int64_t n, int width, Address out) {
        return ops().number_decode(at<const uint8_t>(in), size, n, width, at<uint8_t>(out));
      },
      Release());
  m.def(
      "checksum", [](Address p, int64_t n, uint64_t seed) { return ops().checksum(at<const uint8_t>(p), n, seed); },
      Release());

  // Convolution: structures arrive as lists of whole numbers, in the order of conv.h.
  using Numbers = nb::handle;
  const auto planes = [](Numbers list) {
    const auto v = numbers<13>(list);
    return ConvPlanes{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12]};
  };
  const auto weights = [](Numbers list) {
    const auto v = numbers<6>(list);
    return ConvWeights{v[0],
                       v[1],
                       at<const int32_t>(v[2]),
                       at<const int32_t>(v[3]),
                       at<const int32_t>(v[4]),
                       at<const uint32_t>(v[5])};
  };
  const auto output = [](Numbers list) {
    const auto v = numbers<6>(list);
    return ConvOutput{v[0], v[1], v[2], v[3], v[4], v[5]};
  };
  const auto pattern = [](Numbers list) {
    const auto v = numbers<7>(list);
    return ConvPattern{v[0] != 0,
                       v[1],
                       v[2],
                       at<const int32_t>(v[3]),
                       at<const int32_t>(v[4]),
                       at<const int32_t>(v[5]),
                       at<const int64_t>(v[6])};
  };
  m.def("conv_tile", [] { return ops().conv_tile(); });
  m.def("conv_planes", [=](Numbers p, Address x, Address out, int threads) {
    const auto shape = planes(p);
    nb::gil_scoped_release release;
    ops().conv_planes(shape, at<const float>(x), at<float>(out), threads);
  });
  m.def("conv_apply",
        [=](Numbers p, Numbers w, Numbers o, Address x, Address values, Address bias, Address y, int threads) {
          const auto shape = planes(p);
          const auto what = weights(w);
          const auto where = output(o);
          nb::gil_scoped_release release;
          ops().conv_apply(shape, what, where, at<const float>(x), at<const float>(values), at<const float>(bias),
                           at<float>(y), threads);
        });
  m.def("conv_scatter", [=](Numbers p, Numbers w, int64_t block, int64_t group, Address dy, Address values, Address dx,
                            int threads) {
    const auto shape = planes(p);
    const auto what = weights(w);
    nb::gil_scoped_release release;
    ops().conv_scatter(shape, what, block, group, at<const float>(dy), at<const float>(values), at<float>(dx), threads);
  });
  m.def("conv_gradient", [=](Numbers p, Numbers w, Numbers o, Address x, Address dy, Address gradients, int threads) {
    const auto shape = planes(p);
    const auto what = weights(w);
    const auto where = output(o);
    nb::gil_scoped_release release;
    ops().conv_gradient(shape, what, where, at<const float>(x), at<const float>(dy), at<float>(gradients), threads);
  });
  const auto dense = [](Numbers list) {
    const auto v = numbers<4>(list);
    return ConvDense{v[0], v[1], v[2], at<const uint32_t>(v[3])};
  };
  m.def("conv_dense_apply",
        [=](Numbers p, Numbers w, Numbers o, Address x, Address values, Address bias, Address y, int threads) {
          const auto shape = planes(p);
          const auto what = dense(w);
          const auto where = output(o);
          nb::gil_scoped_release release;
          ops().conv_dense_apply(shape, what, where, at<const float>(x), at<const float>(values), at<const float>(bias),
                                 at<float>(y), threads);
        });
  const auto images = [](Numbers list) {
    const auto v = numbers<7>(list);
    return ConvImages{v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
  };
  m.def("conv_winograd", [=](Numbers s, Numbers order, Address x, Address w, Address bias, Address y, int threads) {
    const auto shape = images(s);
    const auto f = numbers<5>(order);
    const ConvFilter filter{f[0], f[1], f[2], f[3], f[4] != 0};
    nb::gil_scoped_release release;
    ops().conv_winograd(shape, filter, at<const float>(x), at<const float>(w), at<const float>(bias), at<float>(y),
                        threads);
  });
  m.def("conv_winograd_gradient", [=](Numbers s, int64_t out, int64_t channels, Address x, Address dy, Address dw,
                                      int threads) {
    const auto shape = images(s);
    nb::gil_scoped_release release;
    ops().conv_winograd_gradient(shape, out, channels, at<const float>(x), at<const float>(dy), at<float>(dw), threads);
  });
  m.def("conv_dense_gradient",
        [=](Numbers p, Numbers w, Numbers o, int64_t tiles, Address x, Address dy, Address gradients, int threads) {
          const auto shape = planes(p);
          const auto what = dense(w);
          const auto where = output(o);
          nb::gil_scoped_release release;
          ops().conv_dense_gradient(shape, what, where, tiles, at<const float>(x), at<const float>(dy),
                                    at<float>(gradients), threads);
        });
  m.def("conv_count", [=](Numbers p, int64_t channels, int64_t block, int64_t group, Address starts, Address order) {
    const auto what = pattern(p);
    nb::gil_scoped_release release;
    return ops().conv_count(what, channels, block, group, at<int32_t>(starts), at<int32_t>(order));
  });
  m.def("conv_fill", [=](Numbers p, int64_t channels, int64_t block, int64_t group, int64_t channel_bytes,
                         Address starts, Address order, Address offsets, Address index) {
    const auto what = pattern(p);
    nb::gil_scoped_release release;
    ops().conv_fill(what, channels, block, group, channel_bytes, at<const int32_t>(starts), at<const int32_t>(order),
                    at<uint32_t>(offsets), at<int32_t>(index));
  });
  m.def("conv_gather", [](Address values, Address index, int64_t n, Address out, int threads) {
    nb::gil_scoped_release release;
    ops().conv_gather(at<const float>(values), at<const int32_t>(index), n, at<float>(out), threads);
  });

  // Layers between the convolutions. Norm: channels, groups, positions, batch.
  const auto norm = [](Numbers list) {
    const auto v = numbers<4>(list);
    return NormShape{v[0], v[1], v[2], v[3]};
  };
  m.def("group_norm", [=](Numbers s, Address x, Address gamma, Address beta, double eps, bool relu, Address y,
                          Address mean, Address rstd, int threads) {
    const auto shape = norm(s);
    nb::gil_scoped_release release;
    ops().group_norm(shape, at<const float>(x), at<const float>(gamma), at<const float>(beta), eps, relu, at<float>(y),
                     at<float>(mean), at<float>(rstd), threads);
  });
  m.def("group_norm_backward", [=](Numbers s, Address dy, Address x, Address mean, Address rstd, Address gamma,
                                   Address beta, bool relu, Address dx, Address dgamma, Address dbeta, int threads) {
    const auto shape = norm(s);
    nb::gil_scoped_release release;
    ops().group_norm_backward(shape, at<const float>(dy), at<const float>(x), at<const float>(mean),
                              at<const float>(rstd), at<const float>(gamma), at<const float>(beta), relu, at<float>(dx),
                              at<float>(dgamma), at<float>(dbeta), threads);
  });
  m.def("batch_norm", [=](Numbers s, Address x, Address gamma, Address beta, double eps, bool relu, bool training,
                          Address running_mean, Address running_var, double momentum, Address y, Address mean,
                          Address rstd, int threads) {
    const auto shape = norm(s);
    nb::gil_scoped_release release;
    ops().batch_norm(shape, at<const float>(x), at<const float>(gamma), at<const float>(beta), eps, relu, training,
                     {at<float>(running_mean), at<float>(running_var), momentum}, at<float>(y), at<float>(mean),
                     at<float>(rstd), threads);
  });
  m.def("batch_norm_backward",
        [=](Numbers s, Address dy, Address x, Address mean, Address rstd, Address gamma, Address beta, bool relu,
            bool training, Address dx, Address dgamma, Address dbeta, int threads) {
          const auto shape = norm(s);
          nb::gil_scoped_release release;
          ops().batch_norm_backward(shape, at<const float>(dy), at<const float>(x), at<const float>(mean),
                                    at<const float>(rstd), at<const float>(gamma), at<const float>(beta), relu,
                                    training, at<float>(dx), at<float>(dgamma), at<float>(dbeta), threads);
        });

  // Pool: channels, batch, then each axis.
  const auto pool = [](Numbers list) {
    const auto v = numbers<12>(list);
    return PoolShape{v[0], v[1], {v[2], v[3], v[4], v[5], v[6]}, {v[7], v[8], v[9], v[10], v[11]}};
  };
  m.def("max_pool", [=](Numbers s, Address x, Address y, Address index, Address wide_index, int threads) {
    const auto shape = pool(s);
    nb::gil_scoped_release release;
    ops().max_pool(shape, at<const float>(x), at<float>(y), at<uint8_t>(index), at<int32_t>(wide_index), threads);
  });
  m.def("max_pool_backward", [=](Numbers s, Address dy, Address index, Address wide_index, Address dx, int threads) {
    const auto shape = pool(s);
    nb::gil_scoped_release release;
    ops().max_pool_backward(shape, at<const float>(dy), at<const uint8_t>(index), at<const int32_t>(wide_index),
                            at<float>(dx), threads);
  });
  m.def("average_pool", [=](Numbers s, Address x, Address y, int threads) {
    const auto shape = pool(s);
    nb::gil_scoped_release release;
    ops().average_pool(shape, at<const float>(x), at<float>(y), threads);
  });
  m.def("average_pool_backward", [=](Numbers s, Address dy, Address dx, int threads) {
    const auto shape = pool(s);
    nb::gil_scoped_release release;
    ops().average_pool_backward(shape, at<const float>(dy), at<float>(dx), threads);
  });
  m.def("add_relu", [](Address a, Address b, Address y, int64_t n, int threads) {
    nb::gil_scoped_release release;
    ops().add_relu(at<const float>(a), at<const float>(b), at<float>(y), n, threads);
  });
}
