#include "program/visit.h"

#include <math.h>
#include <string.h>

#include <chrono>

namespace sparsefl::program {
namespace {

class Turn {
 public:
  Turn(const Program& p, const Program& growth, Workspace& workspace, const Visit& visit, const Visitor& who,
       VisitMemory& memory, int threads)
      : p_(p),
        growth_(growth),
        workspace_(workspace),
        v_(visit),
        who_(who),
        m_(memory),
        threads_(threads),
        ops_(ops()) {}

  Visited run() {
    Visited done{{0, 0, -1, 0, false, true, -1, -1, 0}, -1, 0, -1, 0};
    average();
    const auto began = std::chrono::steady_clock::now();
    done.trained = train();
    done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const Trained& t = done.trained;
    if (t.stopped || t.failed >= 0 || !t.finite) return done;
    if (v_.origin) drift();
    if (v_.fraction >= 0) {
      drop();
      done.failed = v_.growth ? grow(done.grown_on) : grow_by_scores();
      if (done.failed >= 0) return done;
      ops_.bitmap_count(who_.words, v_.segments, who_.next_offsets);
    }
    if (v_.message) done.bytes = message();
    return done;
  }

 private:
  Arenas arenas() const { return {who_.mask, v_.segments.starts, who_.offsets, who_.values, who_.rest, who_.integers}; }
  int64_t nnz() const { return who_.offsets[v_.segments.count]; }
  int64_t num_words() const { return v_.segments.starts[v_.segments.count]; }

  void average() {
    m_.packed.clear(), m_.rests.clear();
    for (const Stored& model : who_.models) {
      m_.packed.push_back({model.words, model.values, model.nnz});
      m_.rests.push_back(model.rest);
    }
    const int count = int(who_.models.size());
    const OnStack scratch(workspace_.scratch());
    ops_.masked_average(who_.mask, num_words(), m_.packed.data(), count, who_.values, nnz(), threads_);
    ops_.mean(m_.rests.data(), count, who_.rest, p_.rest, threads_);
  }

  Moves moves(const Drawn& drawn) const {
    if (!v_.moved) return {nullptr, nullptr, nullptr, 0};
    return {drawn.rows.data(), drawn.columns.data(), drawn.mirrored.data(), v_.padding};
  }

  Trained train() {
    const int64_t samples = v_.train.count(who_.k), tests = v_.test.count(who_.k), round = v_.round;
    const uint32_t corners = uint32_t(2 * v_.padding);
    m_.drawn.draw({v_.order, uint64_t(round), uint64_t(who_.k)}, v_.train.of(who_.k), v_.train.wide, samples, v_.epochs,
                  corners);
    const Batches batches{v_.train.data, v_.train.labels, m_.drawn.order.data(), moves(m_.drawn), samples,
                          v_.epochs,     v_.batch};
    m_.tests.resize(tests);
    for (int64_t i = 0; i < tests; i++)
      m_.tests[i] = v_.test.wide ? static_cast<const int64_t*>(v_.test.of(who_.k))[i]
                                 : static_cast<const int32_t*>(v_.test.of(who_.k))[i];
    const Batches test{v_.test.data, v_.test.labels, m_.tests.data(), {nullptr, nullptr, nullptr, 0}, tests, 1,
                       v_.batch};
    Training how = v_.training;
    if (by_scores()) {
      m_.scores.assign(v_.segments.dense[v_.segments.count], 0);
      how.scores = m_.scores.data();
      how.score_starts = v_.segments.dense;
    }
    return p_.run_training(workspace_, arenas(), batches, how, tests ? &test : nullptr, threads_);
  }

  bool by_scores() const { return v_.fraction >= 0 && !v_.growth; }

  void drift() {
    const OnStack scratch(workspace_.scratch());
    const int64_t count = v_.segments.count, first = who_.first_offsets[count];
    m_.origin.resize(first + 1);
    ops_.pack(v_.origin, who_.first_mask, who_.first_offsets, v_.segments, m_.origin.data(), threads_);
    ops_.drift({who_.mask, who_.values, nnz()}, {who_.first_mask, m_.origin.data(), first}, who_.offsets,
               who_.first_offsets, v_.segments, who_.norms, threads_);
    ops_.drift_of_runs(who_.rest, v_.origin_rest, v_.tensors.data(), int64_t(v_.tensors.size()) / 2,
                       who_.norms + count);
    for (int64_t i = 0; i < count + int64_t(v_.tensors.size()) / 2; i++) who_.norms[i] = sqrt(who_.norms[i]);
  }

  // The pattern without the smallest entries.
  void drop() {
    const OnStack scratch(workspace_.scratch());
    const int64_t count = v_.segments.count;
    m_.wanted.resize(count), m_.kept.assign(num_words(), 0);
    for (int64_t l = 0; l < count; l++)
      m_.wanted[l] = int64_t(ceil(v_.fraction * double(who_.offsets[l + 1] - who_.offsets[l])));
    ops_.select(who_.values, who_.mask, who_.offsets, v_.segments, m_.wanted.data(), false, false, m_.kept.data(),
                threads_);
    for (int64_t i = 0; i < num_words(); i++) m_.kept[i] ^= who_.mask[i];
    memcpy(who_.words, m_.kept.data(), num_words() * sizeof(uint64_t));
  }

  int64_t grow(int64_t& size) {
    const int64_t samples = v_.train.count(who_.k);
    size = v_.growth < samples ? v_.growth : samples;
    m_.growing.draw({v_.growth_order, uint64_t(v_.round), uint64_t(who_.k)}, v_.train.of(who_.k), v_.train.wide,
                    samples, 1, uint32_t(2 * v_.padding));
    const Batches batches{v_.train.data, v_.train.labels, m_.growing.order.data(), moves(m_.growing), size, 1, size};
    Arenas model = arenas();
    if (v_.norms) {
      m_.rest.assign(who_.rest, who_.rest + p_.rest), model.rest = m_.rest.data();
      m_.integers.assign(who_.integers, who_.integers + v_.integers), model.integers = m_.integers.data();
    }
    return growth_.run_growth(workspace_, model, batches, v_.growth_seeds, m_.kept.data(), m_.wanted.data(), who_.words,
                              threads_);
  }

  int64_t grow_by_scores() {
    const OnStack scratch(workspace_.scratch());
    const int64_t count = v_.segments.count;
    m_.rests.clear();
    for (int64_t l = count - 1; l >= 0; l--)  // the order in which a pass backward meets them
      if (!finite(m_.scores.data() + v_.segments.dense[l], v_.segments.dense[l + 1] - v_.segments.dense[l])) return l;
    for (int64_t l = 0; l < count; l++) m_.rests.push_back(m_.scores.data() + v_.segments.dense[l]);
    ops_.grow(m_.rests.data(), m_.kept.data(), v_.segments, m_.wanted.data(), who_.words, threads_);
    return -1;
  }

  // Those runs of rest, one after the other: where they lie if they are one, else in `joined`, behind what it has.
  const float* parts(const Runs& runs, std::vector<float>& joined) const {
    if (joined.empty() && runs.size() == 2) return who_.rest + runs[0];
    for (size_t i = 0; i < runs.size(); i += 2)
      joined.insert(joined.end(), who_.rest + runs[i], who_.rest + runs[i + 1]);
    return joined.data();
  }

  int64_t message() {
    const OnStack scratch(workspace_.scratch());
    const int64_t count = v_.segments.count;
    m_.stored.resize(count);
    for (int64_t l = 0; l < count; l++) m_.stored[l] = who_.offsets[l + 1] - who_.offsets[l];
    m_.weights.clear(), m_.vectors.clear();
    const float* weights = who_.values;
    int64_t num_weights = nnz();
    if (!v_.weights.empty()) {
      m_.weights.assign(who_.values, who_.values + nnz());
      weights = parts(v_.weights, m_.weights);
      num_weights = int64_t(m_.weights.size());
    }
    int64_t num_vectors = 0;
    for (size_t i = 0; i < v_.vectors.size(); i += 2) num_vectors += v_.vectors[i + 1] - v_.vectors[i];
    const float* vectors = parts(v_.vectors, m_.vectors);
    const Message message{who_.mask,   m_.stored.data(), v_.segments,      weights,
                          num_weights, vectors,          num_vectors,      who_.integers,
                          v_.integers, v_.fingerprint,   uint32_t(who_.k), uint32_t(v_.round)};
    m_.bytes.resize(ops_.message_room(message));
    return ops_.message_encode(message, m_.bytes.data());
  }

  const Program &p_, &growth_;
  Workspace& workspace_;
  const Visit& v_;
  const Visitor& who_;
  VisitMemory& m_;
  const int threads_;
  const Ops& ops_;
};

}  // namespace

Visited visit(const Program& training, const Program& growth, Workspace& workspace, VisitMemory& memory, const Visit& v,
              const Visitor& who, int threads) {
  return Turn(training, growth, workspace, v, who, memory, threads).run();
}

}  // namespace sparsefl::program
