#include "core/model/part_time.h"

#include <algorithm>

namespace deft::model {
namespace {

constexpr double kUsualShare = 0.01;      // of compute
constexpr double kLongestShare = 0.1;     // of compute
constexpr double kUnknownUs = 10'000;     // the usual time while nobody knows the compute
constexpr double kWorthLatencies = 40;    // a part lasts so many times its link's latency, if that is not too long,
constexpr double kWorthBytes = 64 << 10;  // and has so many bytes on the wire: shorter ones made steps longer
constexpr double kLeastLatencies = 6;
// With fewer bytes a link would carry a part beside the large ones. Slow links would need too long for so many.
constexpr double kLeastBytes = kSmallBytes + 4096;
constexpr double kLeastBytesTimes = 3;  // of the usual time

double usual_us(double compute_us) { return compute_us > 0 ? kUsualShare * compute_us : kUnknownUs; }

}  // namespace

double part_us(const LinkModel& link, double compute_us) {
  const double worth_us = std::max(kWorthLatencies * link.latency_us, kWorthBytes / link.bytes_per_us);
  return std::max(
      {usual_us(compute_us), std::min(worth_us, kLongestShare * compute_us), least_part_us(link, compute_us)});
}

double least_part_us(const LinkModel& link, double compute_us) {
  const double us = usual_us(compute_us);
  return std::max({kLeastLatencies * link.latency_us, std::min(us, kWorthBytes / link.bytes_per_us),
                   std::min(kLeastBytesTimes * us, kLeastBytes / link.bytes_per_us)});
}

}  // namespace deft::model
