#include "program/program.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <chrono>

namespace sparsefl::program {
namespace {

// Runs of floats inside an arena: all values, and what is trained of rest.
template <typename Use> void each_run(int64_t values, const std::vector<int64_t>& trained, Use use) {
  use(true, int64_t(0), values);
  for (size_t i = 0; i + 1 < trained.size(); i += 2) use(false, trained[i], trained[i + 1]);
}

double squares(const float* x, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; k++) sums[k] += double(x[i + k]) * x[i + k];
  for (; i < n; i++) sums[0] += double(x[i]) * x[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

int64_t whole(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

Workspace::~Workspace() {
  if (first_) give(first_);
}

float* Workspace::reserve(int64_t floats) {
  if (floats > size_) {
    if (first_) give(first_);
    first_ = nullptr, size_ = 0;
    first_ = static_cast<float*>(want(floats, sizeof(float), "the workspace of a program"));
    size_ = floats;
  }
  return first_;
}

// Batches through lists of steps, and steps of SGD on what they find.
class Program::Pass {
 public:
  Pass(const Program& p, Workspace& workspace, const Arenas& model, const Batches& batches, int extra, int threads)
      : scratch_(workspace.scratch()),
        p_(p),
        b_(batches),
        values_(model.offsets[p.segments]),
        rest_(p.rest),
        labels_(p.lanes),
        r_{ops(),   threads, nullptr, model,   nullptr, nullptr, nullptr, 0,      labels_.data(), true,
           nullptr, 0,       nullptr, nullptr, nullptr, 0,       0,       p.bf16, p.dot} {
    const int64_t arena = whole(values_) + whole(rest_);
    int64_t most = 0;  // stored entries of a weight
    for (const auto& conv : p.convs) most = std::max(most, conv->weight.stored(model));
    r_.work = workspace.reserve(p.size + (1 + extra) * arena + whole(most) + 128);
    r_.dvalues = r_.work + p.size, r_.drest = r_.dvalues + whole(values_);
    for (int i = 0; i < extra; i++) {
      float* first = r_.dvalues + (i + 1) * arena;
      spare_[i] = {first, first + whole(values_)};
    }
    r_.ordered = r_.dvalues + (1 + extra) * arena;
    for (const auto& conv : p.convs) conv->adopt(r_.ops, model);
  }

  int64_t samples(int64_t first) const { return b_.samples - first < b_.batch ? b_.samples - first : b_.batch; }

  // The n samples from `first` on become value 0.
  void load(int64_t first, int64_t n) {
    Moves moves = b_.moves;
    if (moves.rows) moves.rows += first;
    if (moves.columns) moves.columns += first;
    if (moves.mirrored) moves.mirrored += first;
    with_images(r_, [&](auto m) {
      const auto x = m[p_.input];
      m.op(r_.ops.gather, r_.ops.gather_bf16)(b_.data, b_.order + first, n, moves, x, r_.threads);
      if (n < p_.lanes)
        for (int64_t i = p_.rows - 1; i >= 0; i--) {  // from the end: rows move to higher places
          memmove(static_cast<void*>(x + i * p_.lanes), x + i * n, n * sizeof(*x));
          memset(static_cast<void*>(x + i * p_.lanes + n), 0, (p_.lanes - n) * sizeof(*x));
        }
    });
    for (int64_t i = 0; i < n; i++) labels_[i] = b_.labels[b_.order[first + i]];
    r_.samples = n;
  }

  void run(const Steps& steps) {
    for (const auto& step : steps) step->run(r_);
    r_.pass++;
  }

  double gradient_norm() const {
    double total = 0;
    each_run(values_, p_.trained,
             [&](bool packed, int64_t at, int64_t n) { total += squares((packed ? r_.dvalues : r_.drest) + at, n); });
    return sqrt(total);
  }

  // use(weights, gradients, arena in spare memory i) for every run of what is trained.
  template <typename Use> void each(int i, Use use) {
    each_run(values_, p_.trained, [&](bool packed, int64_t at, int64_t n) {
      float* spare = i < 0 ? nullptr : (packed ? spare_[i].values : spare_[i].rest) + at;
      use((packed ? r_.model.values : r_.model.rest) + at, (packed ? r_.dvalues : r_.drest) + at, spare, n);
    });
  }

  // Spare memory i is the caller's from now on, or zeros where he has none.
  void keep(int i, float* values, float* rest) {
    if (values) {
      spare_[i] = {values, rest};
    } else {
      memset(spare_[i].values, 0, values_ * sizeof(float));
      memset(spare_[i].rest, 0, rest_ * sizeof(float));
    }
  }

  Run& state() { return r_; }
  int64_t num_values() const { return values_; }

 private:
  const OnStack scratch_;
  const Program& p_;
  const Batches& b_;
  const int64_t values_, rest_;
  std::vector<int64_t> labels_;
  Run r_;
  struct {
    float *values, *rest;
  } spare_[3];
};

Trained Program::run_training(Workspace& workspace, Arenas model, Batches batches, Training t, const Batches* test,
                              int threads) const {
  const int64_t before = test ? run_evaluation(workspace, model, *test, threads) : -1;
  Trained done = train_only(workspace, model, batches, t, threads);
  done.right_before = done.right_after = before;
  if (done.stopped || done.failed >= 0) return done;
  done.finite = finite(model.values, model.offsets[segments]) && finite(model.rest, rest);
  if (test && done.samples) done.right_after = run_evaluation(workspace, model, *test, threads);
  return done;
}

Trained Program::train_only(Workspace& workspace, const Arenas& model, const Batches& batches, const Training& t,
                            int threads) const {
  const float rate = float(t.pull_rate);
  const bool momentum = t.sgd.momentum != 0, pull = t.pull_rate != 0, uphill = t.rho != 0;
  enum { VELOCITY, OFFSET, HERE, SPARES };
  Pass pass(*this, workspace, model, batches, SPARES * (momentum || pull || uphill), threads);
  pass.state().seeds = t.seeds;
  pass.state().pass = t.pass;
  pass.state().scores = t.scores, pass.state().score_starts = t.score_starts;
  if (momentum) pass.keep(VELOCITY, t.velocity_values, t.velocity_rest);
  Trained done{0, 0, -1, 0, false, true, -1, -1, 0};
  for (int64_t epoch = 0, number = 0; epoch < batches.epochs; epoch++)
    for (int64_t first = 0; first < batches.samples; first += batches.batch, number++) {
      if (t.stop && *static_cast<const volatile uint8_t*>(t.stop)) {
        done.stopped = true;
        return done;
      }
      const int64_t n = pass.samples(first);
      pass.load(epoch * batches.samples + first, n);
      const bool scored = t.scores && epoch + 1 == batches.epochs && first + n == batches.samples;
      const Steps& steps = scored ? last : train;
      pass.run(steps);
      const double loss = pass.state().loss;
      if (!isfinite(loss)) {
        done.failed = number, done.failed_loss = loss;
        return done;
      }
      done.loss += n * loss, done.samples += n;
      if (scored) done.scored = n;
      if (uphill) {  // the gradient at w + rho g / |g| in place of that at w
        const float up = float(t.rho / (pass.gradient_norm() + 1e-12));
        pass.each(HERE, [&](float* w, const float* g, float* here, int64_t count) {
          memcpy(here, w, count * sizeof(float));
          for (int64_t i = 0; i < count; i++) w[i] += up * g[i];
        });
        pass.run(steps);
        pass.each(HERE, [&](float* w, const float*, const float* here, int64_t count) {
          memcpy(w, here, count * sizeof(float));
        });
      }
      Sgd sgd = t.sgd;
      if (t.max_norm > 0) {
        const double norm = pass.gradient_norm();
        sgd.scale = float(norm + 1e-6 > t.max_norm ? t.max_norm / (norm + 1e-6) : 1.0);
      }
      if (pull)
        pass.each(OFFSET, [&](const float* w, const float*, float* offset, int64_t count) {
          const bool packed = w == model.values;
          const float* towards = packed ? t.pull_values : t.pull_rest + (w - model.rest);
          for (int64_t i = 0; i < count; i++) offset[i] = w[i] - towards[i];
        });
      pass.each(momentum ? int(VELOCITY) : -1, [&](float* w, const float* g, float* u, int64_t count) {
        pass.state().ops.masked_sgd(w, g, u, count, sgd, threads);
      });
      if (pull)
        pass.each(OFFSET, [&](float* w, const float*, const float* offset, int64_t count) {
          for (int64_t i = 0; i < count; i++) w[i] -= rate * offset[i];
        });
    }
  return done;
}

Trained Program::run_gradient(Workspace& workspace, Arenas model, Batches batches, const uint64_t* seeds,
                              float* dvalues, float* drest, int threads) const {
  Pass pass(*this, workspace, model, batches, 0, threads);
  pass.state().seeds = seeds;
  Trained done{0, 0, -1, 0, false, true, -1, -1, 0};
  memset(dvalues, 0, pass.num_values() * sizeof(float));
  memset(drest, 0, rest * sizeof(float));
  for (int64_t first = 0, number = 0; first < batches.samples; first += batches.batch, number++) {
    const int64_t n = pass.samples(first);
    pass.load(first, n);
    pass.run(train);
    const double loss = pass.state().loss;
    if (!isfinite(loss)) {
      done.failed = number, done.failed_loss = loss;
      return done;
    }
    done.loss += n * loss, done.samples += n;
    pass.each(-1, [&](const float* w, const float* g, float*, int64_t count) {
      float* sum = w == model.values ? dvalues : drest + (w - model.rest);
      for (int64_t i = 0; i < count; i++) sum[i] += float(n) * g[i];
    });
  }
  return done;
}

std::vector<double> Program::run_profile(Workspace& workspace, Arenas model, Batches batches, const Steps& steps,
                                         const uint64_t* seeds, int times, int threads) const {
  using Clock = std::chrono::steady_clock;
  Pass pass(*this, workspace, model, batches, 0, threads);
  pass.state().seeds = seeds;
  std::vector<double> least(steps.size(), HUGE_VAL);
  for (int i = 0; i < times; i++) {
    pass.load(0, pass.samples(0));
    for (size_t k = 0; k < steps.size(); k++) {
      const auto began = Clock::now();
      steps[k]->run(pass.state());
      least[k] = fmin(least[k], std::chrono::duration<double>(Clock::now() - began).count());
    }
  }
  return least;
}

int64_t Program::run_evaluation(Workspace& workspace, Arenas model, Batches batches, int threads) const {
  Pass pass(*this, workspace, model, batches, 0, threads);
  pass.state().training = false;
  for (int64_t first = 0; first < batches.samples; first += batches.batch) {
    pass.load(first, pass.samples(first));
    pass.run(evaluate);
  }
  return pass.state().correct;
}

int64_t Program::run_growth(Workspace& workspace, Arenas model, Batches batches, const uint64_t* seeds,
                            const uint64_t* kept, const int64_t* wanted, uint64_t* words, int threads) const {
  Pass pass(*this, workspace, model, batches, 0, threads);
  Growth growth{kept, wanted, words};
  pass.state().seeds = seeds;
  pass.state().growth = &growth;
  pass.load(0, pass.samples(0));
  pass.run(grow);
  return growth.failed;
}

}  // namespace sparsefl::program
