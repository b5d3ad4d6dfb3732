// The other member of a link of two, which follows no rule, and strangers at the port of the first one. All in one thread: it acts in the
// calls that a member makes of its store while the link opens.
//
//   auto hostile = std::make_shared<HostileMember>(HostileMember::Plan::take(bytes), bytes);
//   auto link = open_worker_link(spec, HostileMember::group(hostile));   // the link under test
//   hostile->send_frames(tags, 128);                              // all that the link will hear: then the connection ends
//
// The input: a byte for the plan, a byte for the number of acts (at most 15), the acts, and then the frames. The first byte of an act
// chooses the act (byte % 8) and the connection (byte / 8):
//   0 a connection to the member   1 takes a call of the member   2 the right greeting   3 the same in two pieces
//   4 a greeting of which bytes are changed   5 any bytes   6 hangs up   7 nothing
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/descriptor.h"
#include "core/link/address.h"
#include "core/link/encryption/key_exchange.h"
#include "core/link/group.h"
#include "tests/fuzz/bytes.h"

namespace deft::fuzz {

class HostileMember final : public link::Store {
 public:
  struct Plan {
    bool tested_calls =
        false;              // the link under test is member 1, which calls member 0; else it is member 0 and is called
    bool encrypts = false;  // the link under test
    bool gives_up = false;  // this member never says the right greeting after its acts
    bool publishes_text = false;  // any text in place of an invitation
    unsigned request = 0;
    static Plan take(Bytes& bytes);
  };

  HostileMember(const Plan& plan, Bytes& bytes);
  ~HostileMember() override { hang_up(); }
  HostileMember(const HostileMember&) = delete;
  HostileMember& operator=(const HostileMember&) = delete;

  static link::LinkGroup group(const std::shared_ptr<HostileMember>& hostile);

  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override;
  // Does the next act; true when there is none.
  [[nodiscard]] bool ended() const override;

  // True if the link has a reason to believe that this is the other member.
  [[nodiscard]] bool has_greeted() const { return greeted_.has_value(); }
  // The rest of the input as frames of the tcp link, good ones or not, that follow `tag`; encrypted if the link is.
  void send_frames(std::span<const std::uint64_t> tags, std::size_t bytes);
  // Resets all connections, so that the kernel remembers none: thousands a second would use up the ports.
  void hang_up();

 private:
  struct Greeting {
    std::uint64_t magic = 0, member = 0;
    link::Secret secret{};
  };
  struct Connection {
    Descriptor socket;
    bool has_spoken = false;
  };

  [[nodiscard]] std::vector<std::byte> invitation();
  [[nodiscard]] Greeting right_greeting() const;
  bool act();
  bool do_next();
  void greet_at_last();
  void knock();
  void take_call();
  void greet(Connection& connection, unsigned changes, bool in_pieces);
  bool say(const Connection& connection, std::span<const std::byte> bytes) const;
  [[nodiscard]] Connection* chosen(std::uint8_t choice);
  [[nodiscard]] std::vector<std::byte> encrypted(std::span<const std::byte> text) const;

  const Plan plan_;
  Bytes& bytes_;
  unsigned acts_ = 0;  // that are left
  bool greeted_at_last_ = false;
  Descriptor listener_;
  link::Secret secret_{};
  std::optional<link::KeyPair> key_pair_;
  // Of the member under test.
  link::Secret its_secret_{};
  std::optional<link::Address> its_address_;
  std::optional<link::ConnectionKeys> keys_;
  std::vector<Connection> connections_;
  std::optional<std::size_t> greeted_;  // the connection on which the right greeting was said first
};

}  // namespace deft::fuzz
