// What lanes' devices did: the datasets device/ and device_products/.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "src/record/run/run_file_impl.h"

namespace lockstep {

std::vector<DeviceProduct> RunFile::Impl::device_products(int lane) const {
  std::vector<DeviceProduct> found;
  if (!has(lane, quantity_of(&DeviceProduct::step).name)) return found;
  found.resize(static_cast<size_t>(common_rows(lane, Rows::kProduct)));
  for (const Quantity& quantity : quantities()) {
    if_member<DeviceProduct>(quantity, [&](const auto& member) {
      const auto values = rows_of<int64_t>(lane, quantity.name, 0, std::ssize(found));
      for (size_t i = 0; i < found.size(); ++i) std::invoke(member, found[i]) = values[i];
    });
  }
  const auto is_late = [&](const DeviceProduct& p) { return p.step >= steps; };
  found.erase(std::ranges::find_if(found, is_late), found.end());
  const std::string path = lane_path(lane, "device_products");
  for (const DeviceProduct& p : found) {
    if (p.step < 0) {
      throw hdf5::Error(fmt::format("{}: product {} has step {}, must be at least 0", path,
                                    &p - found.data(), p.step));
    }
    const bool is_product = std::min({p.m, p.n, p.k, p.batch, p.most_parts}) >= 1;
    if (is_product && p.site >= -1 && p.site < std::ssize(sites.sites)) {
      continue;
    }
    throw hdf5::Error(fmt::format(
        "{}: product {} of step {} and site {} has {}x{}x{}, batch {}, at most {} parts; sizes "
        "must be at least 1, the site below {}",
        path, &p - found.data(), p.step, p.site, p.m, p.n, p.k, p.batch, p.most_parts,
        sites.sites.size()));
  }
  if (!std::ranges::is_sorted(found, {}, &DeviceProduct::step)) {
    throw hdf5::Error(path + "/step: the steps are not in order");
  }
  return found;
}

DeviceWork RunFile::device(int lane) const {
  return impl_->guard([&] {
    constexpr int64_t kMost = int64_t{1} << 62;  // so that no sum overflows
    DeviceWork work;
    for (const Quantity& quantity : quantities()) {
      if_member<DeviceWork>(quantity, [&](const auto& member) {
        if (!impl_->has(lane, quantity.name)) return;
        int64_t& total = std::invoke(member, work);
        int64_t step = 0;
        for (const int64_t value : impl_->rows_of<int64_t>(lane, quantity.name, 0, impl_->steps)) {
          if (value < 0 || value > kMost - total) {
            throw hdf5::Error(
                fmt::format("{}: {} in step {}; must be at least 0, all together at most {}",
                            impl_->lane_path(lane, quantity.name), value, step, kMost));
          }
          total += value, ++step;
        }
      });
    }
    work.kinds = impl_->device_products(lane);
    return work;
  });
}

}  // namespace lockstep
