// MergeComp (Wang et al., 2021): merges neighbours into few groups, so that a codec's fixed costs are paid seldom, and cuts the
// groups so that their encoding, sending and decoding hides behind backward. It begins as fifo does with fused buckets, groups
// once it has a profile, and groups anew when the profile has moved. Setup::merge_groups says how it searches.
#include <algorithm>

#include "core/base/numbers.h"
#include "core/model/grouping.h"
#include "core/sched/measured_runs.h"
#include "core/sched/policies.h"

namespace deft::sched {
namespace {

constexpr double kSlack = 0.003;  // of the time until all is decoded: what `exact` gives up for fewer transfers
constexpr std::string_view kEvenly = "even:";

struct Search {
  enum class Kind { kAlgorithm2, kExact, kEven };
  Kind kind = Kind::kAlgorithm2;
  unsigned groups = 2;
};

Result<Search> parse(const std::string& text) {
  if (text == "exact") return Search{Search::Kind::kExact, 0};
  const bool even = text.starts_with(kEvenly);
  const std::string_view number = std::string_view(text).substr(even ? kEvenly.size() : 0);
  const unsigned groups = parse_whole<unsigned>(number).value_or(0), most = even ? 1000 : 3;
  if (groups == 0 || groups > most)
    return fail(ErrorKind::kInvalid, "merge_groups '" + text + "' is no way to group",
                "give 1, 2 or 3 (the most groups of MergeComp's search), exact, or even:GROUPS");
  return Search{even ? Search::Kind::kEven : Search::Kind::kAlgorithm2, groups};
}

// What a mean byte of the buckets takes: not all may be encoded, and halves are widened. An encoding is measured as a time a byte; what
// it costs to begin one is not known, and is little beside the latency of the transfer.
class MeanByte {
 public:
  explicit MeanByte(const Setup& setup) : guessed_(setup.codec_cost) {
    double all = 0, encoded = 0;
    for (const auto& bucket : setup.buckets) {
      const auto coded = model::coded_share(bucket);
      all += static_cast<double>(bucket.bytes);
      encoded += coded.share * coded.widening * static_cast<double>(bucket.bytes);
    }
    share_ = encoded / std::max(1.0, all);
  }
  // As the profile has measured the codec, if it has.
  [[nodiscard]] model::GroupCosts costs(const model::Profile& profile) const {
    const model::CodecCost& codec = profile.fixed_codec ? *profile.fixed_codec : guessed_;
    return {{0, share_ * codec.encode_us_per_byte}, {}, {0, share_ * codec.decode_us_per_byte}};
  }

 private:
  const model::CodecCost guessed_;
  double share_ = 0;
};

class MergeComp final : public MeasuredRuns {
 public:
  MergeComp(const Setup& setup, Search search)
      : MeasuredRuns(setup, runs_as_ddp(setup.buckets, model::kDdpBucketBytes)), search_(search), byte_(setup) {}

 private:
  [[nodiscard]] RunStarts choose(const model::Profile& profile) const override {
    auto problem = model::grouping_problem(profile, apart(), byte_.costs(profile));
    // Links work on a part each.
    if (profile.links.size() > 1) problem.part_bytes = profile.links.size() * part_limit();
    switch (search_.kind) {
      case Search::Kind::kAlgorithm2: return model::searched_groups(problem, {.most = search_.groups});
      case Search::Kind::kExact: return model::fewer_groups(problem, model::exact_groups(problem), kSlack);
      case Search::Kind::kEven: break;
    }
    return model::even_groups(problem, search_.groups);
  }

  const Search search_;
  const MeanByte byte_;
};

}  // namespace

Result<void> check_merge_groups(const std::string& text) {
  const auto search = parse(text);
  return search ? Result<void>() : tl::unexpected(search.error());
}

Result<std::unique_ptr<Scheduler>> make_mergecomp(const Setup& setup) {
  const auto search = parse(setup.merge_groups);
  if (!search) return tl::unexpected(search.error());
  return std::make_unique<MergeComp>(setup, *search);
}

}  // namespace deft::sched
