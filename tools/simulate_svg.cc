#include "tools/simulate_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>

namespace deft::tools {
namespace {

// Pixels.
constexpr double kNameColumn = 184;
constexpr double kLaneColumn = 62;
constexpr double kPlotWidth = 1180;
constexpr double kPlotLeft = kNameColumn + kLaneColumn;
constexpr double kWidth = kPlotLeft + kPlotWidth + 20;
constexpr double kTop = 64;
constexpr double kLane = 26;
constexpr double kLaneGap = 5;
constexpr double kMarks = 22;  // the strip of update marks below the compute lane
constexpr double kPanelGap = 22;

constexpr std::array kColours = {"#4e79a7", "#f28e2b", "#59a14f", "#d1495b", "#76b7b2",
                                 "#e3b505", "#9467bd", "#ff9da7", "#8c6d4f", "#7f8c8d"};

template <typename... T>
std::string format(const char* pattern, T... values) {
  char line[640];
  std::snprintf(line, sizeof line, pattern, values...);
  return line;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

// Few buckets get colours that differ at a glance, many a walk around the colour wheel in forward order.
std::string colour(std::uint32_t bucket, std::size_t buckets) {
  if (buckets <= kColours.size()) return kColours[bucket];
  const double hue = 300.0 * bucket / static_cast<double>(buckets);
  return format("hsl(%.0f,60%%,%d%%)", hue, bucket % 2 ? 48 : 58);
}

// Other buckets than the profile's keep the colour and number of the first bucket that they come from.
struct Origin {
  std::uint32_t bucket;
  bool merged;
};

std::vector<Origin> origins(const model::Profile& given, const model::Profile& run) {
  std::map<std::string, std::uint32_t> known;
  for (std::uint32_t i = 0; i < given.buckets.size(); ++i) known[given.buckets[i].name] = i;
  std::vector<Origin> out;
  for (const auto& bucket : run.buckets) {
    const std::size_t dots = bucket.name.find("..");
    const std::size_t end = std::min(dots, bucket.name.find('#'));
    const auto it = known.find(known.contains(bucket.name) ? bucket.name : bucket.name.substr(0, end));
    const auto own = static_cast<std::uint32_t>(out.size());
    out.push_back({it == known.end() ? own : it->second,
                   it != known.end() && it->first != bucket.name && dots != std::string::npos});
  }
  return out;
}

// The part of a run that is drawn: `width_us` from the beginning of a step in the steady state.
struct Window {
  double begin_us;
  double width_us;

  [[nodiscard]] double x(double at_us) const { return kPlotLeft + (at_us - begin_us) / width_us * kPlotWidth; }
  [[nodiscard]] bool shows(double start_us, double end_us) const {
    return end_us > begin_us && start_us < begin_us + width_us;
  }
  [[nodiscard]] double clamp(double at_us) const { return std::clamp(at_us, begin_us, begin_us + width_us); }
};

std::string rectangle(double x, double y, double width, double height, const std::string& fill,
                      const std::string& more = {}) {
  return format(R"(<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" fill="%s"%s/>)", x, y, width, height,
                fill.c_str(), more.c_str()) +
         "\n";
}

std::string text(double x, double y, int size, const std::string& anchor, const std::string& fill,
                 const std::string& words, bool bold = false) {
  return format(R"(<text x="%.1f" y="%.1f" font-size="%d" text-anchor="%s" fill="%s"%s>)", x, y, size, anchor.c_str(),
                fill.c_str(), bold ? R"( font-weight="bold")" : "") +
         escaped(words) + "</text>\n";
}

// A block of a lane with a label if it fits.
std::string block(const Window& window, double start_us, double end_us, double y, const std::string& fill,
                  const std::string& label, const std::string& ink, const std::string& more = {}) {
  const double left = window.x(window.clamp(start_us));
  const double width = std::max(0.3, window.x(window.clamp(end_us)) - left);
  std::string out = rectangle(left, y, width, kLane, fill, more);
  if (width > 6.2 * static_cast<double>(label.size()) + 4)
    out += text(left + width / 2, y + kLane / 2 + 4, 11, "middle", ink, label);
  return out;
}

class Panel {
 public:
  Panel(const model::Profile& given, const PolicyRun& run, double width_us, double reference_us, double top)
      : given_(given),
        profile_(run.profile),
        origins_(origins(given, run.profile)),
        run_(run),
        window_{begin_us(run, width_us), width_us},
        top_(top) {
    draw_name(reference_us);
    draw_backgrounds();
    draw_compute();
    draw_updates();
    draw_sends();
    draw_steps();
  }

  [[nodiscard]] static double height(std::size_t links) {
    return kLane + kMarks + static_cast<double>(links) * (kLane + kLaneGap);
  }
  [[nodiscard]] const std::string& svg() const { return out_; }

 private:
  // The first step of the last stretch that is as wide as the window; where plans repeat, every stretch looks alike.
  static double begin_us(const PolicyRun& run, double width_us) {
    const auto& compute = run.outcome.timeline.compute;
    double begin = 0;
    for (const auto& span : compute)
      if (span.stage == sched::Stage::kForward && span.bucket == 0 && span.start_us + width_us <= compute.back().end_us)
        begin = span.start_us;
    return begin;
  }

  [[nodiscard]] double lane_y(std::size_t link) const {
    return top_ + kLane + kMarks + static_cast<double>(link) * (kLane + kLaneGap);
  }
  [[nodiscard]] std::string colour_of(std::uint32_t bucket) const {
    return colour(origins_[bucket].bucket, given_.buckets.size());
  }
  [[nodiscard]] std::string label_of(std::uint32_t bucket) const {
    return format("%u%s", origins_[bucket].bucket + 1, origins_[bucket].merged ? "+" : "");
  }

  void draw_name(double reference_us) {
    const auto& o = run_.outcome;
    out_ += text(14, top_ + 15, 17, "start", "#1a1a1a", run_.policy, true);
    out_ += text(14, top_ + 34, 13, "start", "#1a1a1a",
                 format("%.1f ms a step", o.step_us / 1e3) +
                     (reference_us > 0 ? format(" (%.2fx)", reference_us / o.step_us) : ""));
    out_ += text(14, top_ + 50, 12, "start", o.bubble_us > 0.02 * o.step_us ? "#b3261e" : "#2e7d32",
                 format("waits %.1f ms", o.bubble_us / 1e3));
    out_ += text(14, top_ + 65, 12, "start", "#555", format("%.2f updates a step", o.updates_per_step));
  }

  void draw_backgrounds() {
    out_ += rectangle(kPlotLeft, top_, kPlotWidth, kLane, "url(#wait)");
    out_ += text(kPlotLeft - 6, top_ + 17, 12, "end", "#333", "compute");
    for (std::size_t link = 0; link < profile_.links.size(); ++link) {
      out_ += rectangle(kPlotLeft, lane_y(link), kPlotWidth, kLane, "#f1f1ee");
      out_ += text(kPlotLeft - 6, lane_y(link) + 17, 12, "end", "#333", profile_.links[link].name.substr(0, 10));
    }
  }

  void draw_compute() {
    double busy_until_us = window_.begin_us;
    for (const auto& span : run_.outcome.timeline.compute) {
      if (!window_.shows(span.start_us, span.end_us)) continue;
      draw_wait(busy_until_us, span.start_us);
      const bool forward = span.stage == sched::Stage::kForward;
      const std::string label = (forward ? "F" : "B") + label_of(span.bucket);
      out_ += block(window_, span.start_us, span.end_us, top_, "#ffffff", "", "");
      out_ += block(window_, span.start_us, span.end_us, top_, colour_of(span.bucket), label, forward ? "#222" : "#fff",
                    forward ? R"( fill-opacity="0.45")" : "");
      busy_until_us = span.end_us;
    }
    draw_wait(busy_until_us, window_.begin_us + window_.width_us);
  }

  void draw_wait(double start_us, double end_us) {
    const std::string label = format("waits %.0f ms", (end_us - start_us) / 1e3);
    const double width = window_.x(end_us) - window_.x(start_us);
    if (width < 6.6 * static_cast<double>(label.size())) return;
    const double middle = (window_.x(start_us) + window_.x(end_us)) / 2;
    out_ += rectangle(middle - 3.4 * static_cast<double>(label.size()), top_ + 6,
                      6.8 * static_cast<double>(label.size()), 15, "#ffffff", R"( rx="3")");
    out_ += text(middle, top_ + 17, 11, "middle", "#b3261e", label);
  }

  // A triangle where a bucket takes its new weights; the last of a generation carries the generation's name.
  void draw_updates() {
    struct Last {
      double at_us = 0;
      std::uint64_t merged = 1;
    };
    std::map<std::uint64_t, Last> last_of;
    const double y = top_ + kLane;
    for (const auto& mark : run_.outcome.timeline.updates) {
      if (!window_.shows(mark.at_us, mark.at_us + 1)) continue;
      const double x = window_.x(mark.at_us);
      out_ += format(R"(<path d="M%.1f %.1fl-4 8h8z" fill="%s" stroke="#222" stroke-width="0.6"/>)", x, y + 1,
                     colour_of(mark.bucket).c_str()) +
              "\n";
      auto& last = last_of[mark.generation];
      last = {std::max(last.at_us, mark.at_us), mark.last_step - mark.first_step + 1};
    }
    double labelled_until = 0;
    for (const auto& [generation, last] : last_of) {
      const double left = window_.x(last.at_us) + 3;
      if (left < labelled_until || left > kPlotLeft + kPlotWidth - 30) continue;
      labelled_until = left + (last.merged > 1 ? 72 : 30);
      out_ += text(left, y + 18, 9, "start", "#222",
                   format("g%llu", static_cast<unsigned long long>(generation)) +
                       (last.merged > 1 ? format("=%llu steps", static_cast<unsigned long long>(last.merged)) : ""));
    }
  }

  void draw_sends() {
    std::vector<std::vector<model::SendSpan>> lanes(profile_.links.size());
    for (const auto& send : run_.outcome.timeline.sends) {
      if (!window_.shows(send.start_us, send.end_us)) continue;
      auto& lane = lanes[send.link];
      // Parts of one bucket that follow one another are one block.
      if (!lane.empty() && lane.back().bucket == send.bucket && lane.back().generation == send.generation &&
          send.start_us - lane.back().end_us < window_.width_us / kPlotWidth / 4) {
        lane.back().end_us = send.end_us;
      } else {
        lane.push_back(send);
      }
    }
    for (std::size_t link = 0; link < lanes.size(); ++link)
      for (const auto& send : lanes[link]) draw_send(send, lane_y(link));
  }

  void draw_send(const model::SendSpan& send, double y) {
    const std::string label =
        label_of(send.bucket) + format("\u00b7g%llu", static_cast<unsigned long long>(send.generation));
    out_ += block(window_, send.start_us, send.end_us, y, colour_of(send.bucket), "", "");
    if (send.generation % 2) out_ += block(window_, send.start_us, send.end_us, y, "url(#odd)", "", "");
    out_ +=
        block(window_, send.start_us, send.end_us, y, "none", label, "#fff", R"( stroke="#fff" stroke-width="0.5")");
  }

  void draw_steps() {
    const double bottom = top_ + height(profile_.links.size()) - kLaneGap + 3;
    for (const auto& span : run_.outcome.timeline.compute) {
      if (span.stage != sched::Stage::kForward || span.bucket != 0) continue;
      if (span.start_us < window_.begin_us || span.start_us >= window_.begin_us + window_.width_us) continue;
      const double x = window_.x(span.start_us);
      out_ += format(R"(<path d="M%.1f %.1fV%.1f" stroke="#111" stroke-width="1.4"/>)", x, top_ - 5, bottom) + "\n";
      if (x < kPlotLeft + kPlotWidth - 50)
        out_ +=
            text(x + 3, top_ - 3, 10, "start", "#111", format("step %llu", static_cast<unsigned long long>(span.step)));
    }
  }

  const model::Profile& given_;    // whose buckets have the colours
  const model::Profile& profile_;  // with the buckets of this run
  std::vector<Origin> origins_;
  const PolicyRun& run_;
  Window window_;
  double top_;
  std::string out_;
};

std::string definitions() {
  return R"svg(<defs>
<pattern id="wait" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="7" height="7" fill="#fdeceb"/><path d="M0 0V7" stroke="#e8a29d" stroke-width="2.4"/></pattern>
<pattern id="odd" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">
<path d="M0 0V6" stroke="#000" stroke-opacity="0.28" stroke-width="4"/></pattern>
</defs>
)svg";
}

std::string axis(double width_us, double top, double bottom) {
  const double raw_us = width_us / 12;
  const double magnitude = std::pow(10, std::floor(std::log10(raw_us)));
  double tick_us = magnitude;
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (magnitude * factor <= raw_us * 1.5) tick_us = magnitude * factor;
  std::string out;
  const int ticks = static_cast<int>(width_us / tick_us);
  for (int tick = 0; tick <= ticks; ++tick) {
    const double at_us = tick * tick_us;
    const double x = kPlotLeft + at_us / width_us * kPlotWidth;
    out += format(R"(<path d="M%.1f %.1fV%.1f" stroke="#ccc" stroke-width="0.6"/>)", x, top, bottom) + "\n";
    out += text(x, bottom + 13, 11, "middle", "#555", format("%g", at_us / 1e3) + (tick == 0 ? " ms" : ""));
  }
  return out;
}

// Two rows: the colours, then the signs.
std::string legend(const model::Profile& profile, double y) {
  std::string out;
  double x = kPlotLeft;
  const std::size_t named = std::min<std::size_t>(profile.buckets.size(), kColours.size());
  for (std::uint32_t i = 0; i < named; ++i) {
    const auto& bucket = profile.buckets[i];
    const std::string label =
        format("%u ", i + 1) + bucket.name.substr(0, 18) + format(" %.3g MB", static_cast<double>(bucket.bytes) / 1e6);
    if (x + 30 + 6.8 * static_cast<double>(label.size()) > kWidth) x = kPlotLeft, y += 20;
    out += rectangle(x, y - 11, 16, 13, colour(i, profile.buckets.size()));
    out += text(x + 21, y, 12, "start", "#222", label);
    x += 36 + 6.8 * static_cast<double>(label.size());
  }
  if (named < profile.buckets.size())
    out += text(x, y, 12, "start", "#222", format("... %zu buckets", profile.buckets.size()));
  y += 22;
  const auto sign = [&](double at, const std::string& box, const std::string& words) {
    out += box + text(at + 27, y, 12, "start", "#222", words);
  };
  x = kPlotLeft;
  sign(x, rectangle(x, y - 11, 22, 13, "#4e79a7", R"( fill-opacity="0.45")"), "F forward");
  sign(x + 105, rectangle(x + 105, y - 11, 22, 13, "#4e79a7"), "B backward");
  sign(x + 220, rectangle(x + 220, y - 11, 22, 13, "url(#wait)"), "compute waits");
  sign(x + 350, rectangle(x + 350, y - 11, 22, 13, "#4e79a7"), "even generation");
  sign(x + 490, rectangle(x + 490, y - 11, 22, 13, "#4e79a7") + rectangle(x + 490, y - 11, 22, 13, "url(#odd)"),
       "odd generation");
  sign(x + 628,
       format(R"(<path d="M%.1f %.1fl-4 8h8z" fill="#4e79a7" stroke="#222" stroke-width="0.6"/>)", x + 643, y - 9),
       "update applied");
  sign(x + 768, format(R"(<path d="M%.1f %.1fv15" stroke="#111" stroke-width="1.4"/>)", x + 788, y - 12),
       "a step's forward begins");
  return out;
}

}  // namespace

void draw_timelines(std::ostream& out, const model::Profile& profile, const std::vector<PolicyRun>& runs) {
  double slowest_us = 0;
  for (const auto& run : runs) slowest_us = std::max(slowest_us, run.outcome.step_us);
  const double width_us = std::max(1.0, 2.05 * slowest_us);
  const double reference_us = runs.size() > 1 ? runs.front().outcome.step_us : 0;  // of the speedups
  const double panel = Panel::height(profile.links.size()) + kPanelGap;
  const double bottom = kTop + panel * static_cast<double>(runs.size()) - kPanelGap + 4;
  const double legend_rows = std::ceil(static_cast<double>(std::min(profile.buckets.size(), kColours.size())) / 7);
  const double height = bottom + 62 + 20 * legend_rows;
  out << format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" )",
                kWidth, height, kWidth, height)
      << R"(font-family="DejaVu Sans, Helvetica, Arial, sans-serif">)" << '\n'
      << definitions() << rectangle(0, 0, kWidth, height, "#ffffff");
  out << text(14, 26, 18, "start", "#1a1a1a",
              profile.model + ": what compute and links do under each policy, in the steady state", true)
      << text(14, 45, 12, "start", "#555",
              format("All panels have the same scale. Compute alone takes %.1f ms a step. ",
                     profile.compute_us() / 1e3) +
                  "Blocks on links: bucket\u00b7generation (+: merged with the next); gN: where generation N is "
                  "applied.");
  out << axis(width_us, kTop - 6, bottom);
  for (std::size_t i = 0; i < runs.size(); ++i)
    out << Panel(profile, runs[i], width_us, reference_us, kTop + panel * static_cast<double>(i)).svg();
  out << legend(profile, bottom + 40) << "</svg>\n";
}

}  // namespace deft::tools
