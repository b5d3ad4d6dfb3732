#include "core/link/encryption/encrypted_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace deft::link {
namespace {

constexpr int kTurns = 8;  // of a direction, before others have theirs

bool is_again() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

EncryptedConnection::EncryptedConnection(Wire wire, Descriptor inner, Descriptor plain)
    : peer_(wire.peer),
      wire_(std::move(wire.socket)),
      inner_(std::move(inner)),
      plain_(std::move(plain)),
      out_(wire.keys.sends),
      in_(wire.keys.receives) {}

std::string EncryptedConnection::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EncryptedConnection::leave() {
  in_.over = true;
  out_.ready = true;
}

// A direction that waits for one socket does not care about the other.
void EncryptedConnection::note(bool of_wire) {
  if (out_.writer.pending().empty() != of_wire) out_.ready = true;
  if (in_.reader.texts().empty() == of_wire) in_.ready = true;
}

bool EncryptedConnection::advance(bool last) {
  if (!out_.ready && !in_.ready) return false;
  out_.ready = out_.ready && send_some(last);
  in_.ready = in_.ready && receive_some();
  if (out_.over && in_.over) hang_up();
  return out_.ready || in_.ready;
}

bool EncryptedConnection::flush() {
  while (!out_.writer.pending().empty()) {
    const auto bytes = out_.writer.pending();
    const ssize_t sent = send(wire(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      out_.writer.sent(static_cast<std::size_t>(sent));
    } else if (is_again()) {
      return false;
    } else if (errno != EINTR) {
      out_.over = true;
      in_.ready = true;  // finds out why
      if (in_.over) shutdown(inner(), SHUT_RDWR);
      return false;
    }
  }
  return true;
}

bool EncryptedConnection::send_some(bool last) {
  for (int turn = 0; turn < kTurns; ++turn) {
    if (out_.over || !flush()) return false;
    if (out_.sealed_end) {
      shutdown(wire(), SHUT_WR);
      out_.over = true;
      return false;
    }
    const auto places = out_.writer.places();
    const ssize_t got = readv(inner(), places.data(), static_cast<int>(places.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && is_again() && !last) return false;
    if (got > 0) {
      out_.writer.seal(static_cast<std::size_t>(got));
    } else {  // a reset, too: the plain socket was closed before all was read
      out_.writer.seal_end();
      out_.sealed_end = true;
    }
  }
  return true;
}

bool EncryptedConnection::deliver() {
  while (!in_.reader.texts().empty()) {
    const auto texts = in_.reader.texts();
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(texts.data());
    message.msg_iovlen = texts.size();
    const ssize_t sent = sendmsg(inner(), &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      in_.reader.taken(static_cast<std::size_t>(sent));
    } else if (is_again()) {
      return false;
    } else if (errno != EINTR) {  // nobody reads it any more
      in_.over = true;
      return false;
    }
  }
  return true;
}

bool EncryptedConnection::receive_some() {
  for (int turn = 0; turn < kTurns; ++turn) {
    if (in_.over || !deliver()) return false;
    if (in_.broken || in_.reader.ended()) {
      shutdown(inner(), in_.broken || out_.over ? SHUT_RDWR : SHUT_WR);
      in_.over = true;
      return false;
    }
    if (!read_wire()) return false;
  }
  return true;
}

bool EncryptedConnection::read_wire() {
  const auto space = in_.reader.space();
  const ssize_t got = recv(wire(), space.data(), space.size(), 0);
  if (got > 0) {
    if (const auto ok = in_.reader.add(static_cast<std::size_t>(got)); !ok) break_off(ok.error().what);
  } else if (got == 0) {
    break_off("it ended without a word: the other side died, or somebody cut it");
  } else if (is_again()) {
    return false;
  } else if (errno != EINTR) {
    break_off(std::strerror(errno));
  }
  return true;
}

// The cause is there before the plain socket ends.
void EncryptedConnection::break_off(const std::string& cause) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = cause;
  }
  in_.broken = true;
  out_.over = true;
  hang_up();
}

// A peer that goes on to send hears of it by a reset. That comes with the next packet, for which there must be room.
void EncryptedConnection::hang_up() {
  shutdown(wire(), SHUT_RDWR);
  std::array<std::byte, 16384> unread;
  while (recv(wire(), unread.data(), unread.size(), 0) > 0) {
  }
}

void EncryptedConnection::shut() {
  shutdown(wire(), SHUT_RDWR);
  shutdown(inner(), SHUT_RDWR);
}

}  // namespace deft::link
