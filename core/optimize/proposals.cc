#include "core/optimize/proposals.h"

#include <algorithm>
#include <utility>

#include "core/optimize/codec_floors.h"

namespace deft::optimize {
namespace {

bool encodes(const replay::MeasuredJob& measured, const SearchLimits& limits, const Settings& settings) {
  if (settings.compression.empty()) return measured.profile.codecs.size() > 1;
  const auto codec = std::ranges::find(limits.codecs, settings.compression, &model::CodecCost::name);
  return codec != limits.codecs.end() && codec->wire_share < 1;
}

// A floor counts only if it changes which tensors are encoded: else a pass could propose one after the other for ever.
Settings with_floor_that_counts(Settings proposed, const Settings& best, const replay::MeasuredJob& measured,
                                const SearchLimits& limits) {
  const bool changes = encodes(measured, limits, proposed) && encoded_tensors(measured, proposed.codec_min_bytes) !=
                                                                  encoded_tensors(measured, best.codec_min_bytes);
  if (!changes) proposed.codec_min_bytes = best.codec_min_bytes;
  return proposed;
}

// Other links may be fewer, to fall back on, and smaller floors round more gradients.
bool costs_more(const Settings& proposed, const Settings& best) {
  return proposed.links != best.links || proposed.codec_min_bytes < best.codec_min_bytes;
}

// The best of what the passes have proposed up to now.
class Judge {
 public:
  explicit Judge(const Candidate& best) : bests_{best}, shortest_us_(best.us) {}

  [[nodiscard]] const Candidate& best() const { return bests_.back(); }
  [[nodiscard]] std::vector<Candidate> bests() && { return std::move(bests_); }

  // False: it is no better.
  bool take(const Candidate& found) {
    const bool costs = costs_more(found.settings, best().settings);
    const bool rounds_less = !costs && found.settings.codec_min_bytes > best().settings.codec_min_bytes;
    const double least_gain = costs ? kLeastGain : rounds_less ? -kLeastClimb : kLeastClimb;
    if (found.us <= 0 || found.us >= shortest_us_ * (1 - least_gain)) return false;
    shortest_us_ = std::min(shortest_us_, found.us);
    if (costs)
      bests_.push_back(found);
    else
      bests_.back() = found;
    return true;
  }

 private:
  std::vector<Candidate> bests_;
  double shortest_us_;  // that what rounds less is compared with, lest many small losses add up
};

}  // namespace

Result<std::vector<Candidate>> after_passes(const Climber& climber, Replays& replays,
                                            const replay::MeasuredJob& measured, const SearchLimits& limits,
                                            const Candidate& best, Found& found) {
  Judge judge(best);
  for (bool is_better = static_cast<bool>(limits.passes); is_better && replays.have_time();) {
    const Candidate before = judge.best();
    const auto proposals = limits.passes(before.settings, before.us);
    if (!proposals) return tl::unexpected(proposals.error());
    ++found.passes_asked;
    is_better = false;
    for (const Proposal& proposal : *proposals) {
      const Settings settings = with_floor_that_counts(proposal.settings, before.settings, measured, limits);
      const double us = replays.us(settings);
      PassResult& result = found.passes[proposal.pass];
      ++result.proposals;
      if (us <= 0) continue;
      result.best_us = result.best_us > 0 ? std::min(result.best_us, us) : us;
      is_better = judge.take(climber.from({settings, us})) || is_better;
    }
  }
  return std::move(judge).bests();
}

}  // namespace deft::optimize
