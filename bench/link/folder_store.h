// A store in a folder that all nodes of the lab share. Links between processes of one machine use it for their rendezvous.
#pragma once

#include <filesystem>

#include "core/link/link.h"

namespace deft::link {

class FolderStore final : public Store {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  // Waits by polling every millisecond. Only the opening of a link waits.
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

 private:
  [[nodiscard]] std::filesystem::path file(const std::string& key) const;
  const std::filesystem::path folder_;
};

}  // namespace deft::link
