// One node of `bench/link_pairs`: times all-reduces on some links, on each alone and on all at the same time.
//
//   link_pairs NODE NODES FOLDER LINKS ROUNDS ELEMENTS...
//
// Node 0 prints one JSON object a line: {"links": "alone" or "together", "link": .., "elements": .., "us": ..,
// "rounds_us": [..]}, the median and each round, and for each link and mode
// {"links": .., "link": .., "fit": {"latency_us": .., "bytes_per_us": ..}}.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/link/folder_store.h"
#include "core/link/link.h"
#include "core/model/link_costs.h"

namespace deft::link {
namespace {

constexpr TimeUs kConnectUs = 20'000'000;

template <typename T>
T value_or_exit(Result<T> result) {
  if (result) return *std::move(result);
  std::cerr << result.error().message() << "\n";
  std::exit(1);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string as_json(const std::vector<double>& us) {
  std::string text;
  for (const double one : us) text += (text.empty() ? "[" : ", ") + std::to_string(std::llround(one));
  return text + "]";
}

// The links of this node, each with memory of its own, as in training.
class Node {
 public:
  Node(std::uint32_t node, std::uint32_t nodes, const std::string& folder, const std::string& links,
       std::size_t largest)
      : node_(node) {
    const auto store = std::make_shared<FolderStore>(folder);
    for (const LinkSpec& spec : value_or_exit(resolve_links(links, true))) {
      LinkGroup group{.node = node, .nodes = nodes, .prefix = "pairs" + std::to_string(links_.size()), .store = store};
      group.connect_deadline_us = MonotonicClock::now() + kConnectUs;
      group.silence_us = kConnectUs;
      links_.push_back(value_or_exit(open_link(spec, group)));
      names_.push_back(spec.name());
      memory_.emplace_back(largest);
    }
  }

  // Microseconds by link and round. All nodes begin a round together, and every link of `which` does one all-reduce.
  std::vector<std::vector<double>> time(const std::vector<std::size_t>& which, std::size_t elements, int rounds) {
    std::vector<std::vector<double>> times(which.size());
    for (int round = 0; round <= rounds; ++round) {
      float together = 0;
      reduce(0, &together, 1);
      std::vector<std::thread> running;
      for (std::size_t i = 0; i < which.size(); ++i) {
        running.emplace_back([&, i] {
          const TimeUs began = MonotonicClock::now();
          reduce(which[i], memory_[which[i]].data(), elements);
          if (round > 0) times[i].push_back(static_cast<double>(MonotonicClock::now() - began));
        });
      }
      for (std::thread& thread : running) thread.join();
    }
    return times;
  }

  void measure(const char* mode, const std::vector<std::size_t>& which, const std::vector<std::size_t>& sizes,
               int rounds) {
    std::map<std::size_t, std::vector<model::LinkSample>> samples;
    for (const std::size_t elements : sizes) {
      const auto times = time(which, elements, rounds);
      for (std::size_t i = 0; i < which.size(); ++i) {
        const double us = median(times[i]);
        samples[which[i]].push_back({elements * sizeof(float), us});
        if (node_ != 0) continue;
        std::printf(R"({"links": "%s", "link": "%s", "elements": %zu, "us": %.0f, "rounds_us": %s})"
                    "\n",
                    mode, names_[which[i]].c_str(), elements, us, as_json(times[i]).c_str());
      }
    }
    for (const auto& [link, of_link] : samples) print_fit(mode, link, of_link);
  }

  [[nodiscard]] std::size_t count() const { return links_.size(); }

 private:
  void reduce(std::size_t link, float* data, std::size_t elements) {
    const auto done = links_[link]->run(WorkRequest::all_reduce(reinterpret_cast<std::byte*>(data), elements,
                                                                model::DType::kFloat32, model::ReduceOp::kSum));
    if (done) return;
    std::cerr << done.error().message() << "\n";
    std::_Exit(1);  // the other links' threads still run
  }

  void print_fit(const char* mode, std::size_t link, const std::vector<model::LinkSample>& samples) const {
    const auto fit = model::fit_link(samples);
    if (node_ != 0 || !fit) return;
    std::printf(R"({"links": "%s", "link": "%s", "fit": {"latency_us": %.1f, "bytes_per_us": %.3f}})"
                "\n",
                mode, names_[link].c_str(), fit->latency_us, fit->bytes_per_us);
  }

  const std::uint32_t node_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::string> names_;
  std::vector<std::vector<float>> memory_;
};

int run(const std::vector<std::string>& words) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 5; i < words.size(); ++i) sizes.push_back(std::stoul(words[i]));
  const int rounds = std::stoi(words[4]);
  Node node(static_cast<std::uint32_t>(std::stoul(words[0])), static_cast<std::uint32_t>(std::stoul(words[1])),
            words[2], words[3], std::ranges::max(sizes));
  std::vector<std::size_t> all;
  for (std::size_t link = 0; link < node.count(); ++link) {
    all.push_back(link);
    node.measure("alone", {link}, sizes, rounds);
  }
  if (all.size() > 1) node.measure("together", all, sizes, rounds);
  return 0;
}

}  // namespace
}  // namespace deft::link

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fputs("usage: link_pairs NODE NODES FOLDER LINKS ROUNDS ELEMENTS...; bench/link_pairs starts it\n", stderr);
    return 2;
  }
  return deft::link::run({argv + 1, argv + argc});
}
