// What only the gloo link promises.
#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

TEST(Gloo, AnAddressThatIsNotOursIsSaid) {
  const auto link = open_link({"gloo", "eth0", "198.51.100.7"}, make_group(2, std::make_shared<MemoryStore>()));
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(link.error().message().find("198.51.100.7"), std::string::npos) << link.error().message();
}

}  // namespace
}  // namespace deft::link::testing
