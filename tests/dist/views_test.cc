// Views: they see each other's writes, lie where plain ones do, and are differentiated when they are written.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Replicate;
using mt::Shard;

using View = std::function<torch::Tensor(const torch::Tensor&)>;
const std::map<std::string, View> kViews{
    {"view", [](const auto& x) { return x.view(-1); }},
    {"unflatten", [](const auto& x) { return x.unflatten(1, {2, 3}); }},
    {"flatten", [](const auto& x) { return x.flatten(); }},
    {"select", [](const auto& x) { return x.select(0, 4); }},
    {"narrow", [](const auto& x) { return x.narrow(0, 1, 3); }},
    {"slice", [](const auto& x) { return x.slice(1, 0, 6, 2); }},
    {"t", [](const auto& x) { return x.t(); }},
    {"diagonal", [](const auto& x) { return x.diagonal(1); }},
    {"unfold", [](const auto& x) { return x.unfold(0, 2, 2); }},
    {"split", [](const auto& x) { return x.split(2, 0)[1]; }},
    {"unbind", [](const auto& x) { return x.unbind(0)[3]; }},
    {"as_strided", [](const auto& x) { return x.as_strided({4}, {7}, 1); }},
    {"view of a view", [](const auto& x) { return x.view(-1).view({6, 5}).select(1, 2); }},
};

TEST(Views, AndWhatTheyAreTakenOfSeeEachOthersWrites) {
  on_ranks(2, [](int) {
    for (const auto& [name, take] : kViews) {
      for (const mt::Placement& p :
           {mt::Placement(Shard(0)), mt::Placement(Shard(1)), mt::Placement(Replicate())}) {
        const std::string what = name + " of " + p.to_string();
        const torch::Tensor plain = numbers({5, 6});
        const torch::Tensor x = split_in_two(plain.clone(), p);
        const torch::Tensor plain_view = take(plain), plain_sibling = plain.view(-1);
        const torch::Tensor view = take(x), sibling = x.view(-1);
        const auto expect_alike = [&](const char* after) {
          EXPECT_TRUE(is_equal(mt::full_tensor(view), plain_view)) << what << " after " << after;
          EXPECT_TRUE(is_equal(mt::full_tensor(view * 2), plain_view * 2)) << what << " after " << after;
          EXPECT_TRUE(is_equal(mt::full_tensor(sibling), plain_sibling)) << what << " after " << after;
          EXPECT_TRUE(is_equal(mt::full_tensor(x), plain)) << what << " after " << after;
        };
        expect_alike("nothing");
        x.mul_(2);
        plain.mul_(2);
        expect_alike("a write to the base");
        sibling.sub_(1);
        plain_sibling.sub_(1);
        expect_alike("a write to another view");
        x.fill_(3);
        plain.fill_(3);
        view.select(0, 0).mul_(5);  // of a view that was not read since
        plain_view.select(0, 0).mul_(5);
        expect_alike("writes to the base and to a part of the view");
      }
    }
  });
}

TEST(Views, ThatAreWrittenAreDifferentiated) {
  on_ranks(2, [](int) {
    const torch::Tensor leaf = numbers({4, 3}).requires_grad_();
    const torch::Tensor leaf_split = split_in_two(numbers({4, 3}), Shard(0)).requires_grad_();
    const auto run = [](const torch::Tensor& x) {
      torch::Tensor y = x * 2;
      y.select(1, 1).mul_(3);
      return (y * y).sum();
    };
    run(leaf).backward();
    run(leaf_split).backward();
    EXPECT_TRUE(is_close(mt::full_tensor(leaf_split.grad()), leaf.grad()));
  });
}

TEST(Views, LieWherePlainOnesDo) {
  on_ranks(2, [](int) {
    const torch::Tensor plain = numbers({5, 6});
    for (const auto& [name, take] : kViews) {
      for (const mt::Placement& p : {mt::Placement(Shard(0)), mt::Placement(Shard(1))}) {
        const torch::Tensor x = split_in_two(plain, p);
        for (const auto& [view, expected] :
             {std::pair(take(x), take(plain)), std::pair(take(x.t().t()), take(plain))}) {
          EXPECT_EQ(view.strides(), expected.strides()) << name << " of " << p.to_string();
          EXPECT_EQ(view.storage_offset(), expected.storage_offset()) << name << " of " << p.to_string();
        }
      }
    }
  });
}

// Each takes a view of its argument, gives it another shape in place, writes, and returns what is
// differentiated.
const std::map<std::string, View> kReshaped{
    {"t_, then a write",
     [](const auto& x) {
       torch::Tensor view = x.narrow(0, 0, 2);
       view.t_();
       return view.mul_(2);
     }},
    {"squeeze_, then a write to the base",
     [](const auto& x) {
       torch::Tensor view = x.narrow(0, 0, 1);
       view.squeeze_();
       x.mul_(2);
       return view;
     }},
    {"unsqueeze_ without gradients, then a write",
     [](const auto& x) {
       torch::Tensor view = x.narrow(0, 1, 2);
       {
         const torch::NoGradGuard no_grad;
         view.unsqueeze_(0);
       }
       view.mul_(3);
       return x;
     }},
    {"as_strided_, then a write to the base",
     [](const auto& x) {
       torch::Tensor view = x.narrow(0, 0, 2);
       view.as_strided_({3}, {2});
       x.mul_(2);
       return view;
     }},
};

TEST(Views, ThatGetAnotherShapeInPlaceAreDifferentiated) {
  on_ranks(2, [](int) {
    for (const auto& [name, reshaped] : kReshaped) {
      const auto gradient = [&](const torch::Tensor& leaf) {
        const torch::Tensor result = reshaped(leaf * 1);
        (result * result).sum().backward();
        return leaf.grad();
      };
      const torch::Tensor expected = gradient(numbers({3, 4}).requires_grad_());
      for (const mt::Placement& p :
           {mt::Placement(Shard(0)), mt::Placement(Shard(1)), mt::Placement(Replicate())}) {
        const torch::Tensor leaf = split_in_two(numbers({3, 4}), p).requires_grad_();
        EXPECT_TRUE(is_close(mt::full_tensor(gradient(leaf)), expected)) << name << " of " << p.to_string();
      }
    }
  });
}

TEST(Views, ResizeTakesTheElementsInTheOrderInWhichTheyLie) {
  on_ranks(2, [](int) {
    const torch::Tensor plain = numbers({4, 6});
    for (const mt::Placement& p : {mt::Placement(Shard(0)), mt::Placement(Shard(1))}) {
      const torch::Tensor fewer = split_in_two(plain, p), more = split_in_two(plain, p);
      fewer.resize_({3, 5});
      EXPECT_TRUE(is_equal(mt::full_tensor(fewer), plain.flatten().narrow(0, 0, 15).view({3, 5})));
      more.resize_({5, 6});
      EXPECT_TRUE(is_equal(mt::full_tensor(more).narrow(0, 0, 4), plain));
      const torch::Tensor row = split_in_two(plain, p)[1];
      EXPECT_NE(error_of([&] { row.resize_({7}); }).find("to more elements"), std::string::npos);
    }
  });
}

TEST(Views, ThatAreCopiesSayWhenTheyShowWhatWas) {
  on_ranks(2, [](int) {
    const torch::Tensor x = split_in_two(torch::full({4, 3}, 7.0F), Shard(0));
    const mt::DTensor row = x.select(0, 1);
    x.zero_();
    const auto text = [&] { return (std::ostringstream() << row).str(); };
    EXPECT_NE(text().find(", as it was before its base was written"), std::string::npos) << text();
    row.to_local();
    EXPECT_EQ(text().find("as it was"), std::string::npos) << text();
    EXPECT_EQ(text().find('7'), std::string::npos) << text();
  });
}

}  // namespace
}  // namespace meshtorch::testing
