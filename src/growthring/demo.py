"""`make demo`: grows a small ResNet from a quarter of its width, and prints what happened."""

from __future__ import annotations

import copy

import torch

from growthring.grower import Grower
from growthring.optim import SGD
from growthring.planner import plan
from growthring.verify import verify
from growthring.zoo import resnet20


def main() -> None:
    """Grows ResNet-20 in nine stages; a few training steps between growths keep it honest."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(16, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (16,), generator=generator)
    model = resnet20(generator=generator)
    schedule = plan(model, images[:2])
    count = sum(p.numel() for p in model.parameters())
    print(f"ResNet-20, an ordinary model of {count:,} parameters, and the plan to grow it:\n")
    print(f"{schedule}\n")
    seed = schedule.build_seed()
    optimizer = SGD(seed.parameters(), lr=0.1, momentum=0.9)
    grower = Grower(seed, schedule, optimizer=optimizer, noise=0.0, generator=generator)
    loss_function = torch.nn.CrossEntropyLoss()
    rows = []
    while True:
        for _ in range(3):  # the user's own training loop
            loss = loss_function(seed(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if grower.is_full:
            break
        before = copy.deepcopy(seed)
        report = grower.grow()
        change = verify(before, seed, images)
        rows.append((report, float(loss.detach()), change.relative))
    print("stage  parameters   loss before   change of the outputs   seconds")
    for report, loss_value, relative in rows:
        print(
            f"{report.stage:>5}  {report.parameters_after:>10,}  {loss_value:>12.4f}  {relative:>22.1e}"
            f"  {report.seconds:>8.3f}"
        )
    model.load_state_dict(seed.state_dict(), strict=True)
    final = verify(model, seed, images)
    print(
        f"\nThe grown weights load into the original model; outputs differ by {final.relative:.1e}."
    )
    name = [n for n, p in seed.named_parameters() if p.dim() == 4][-1]
    factors = optimizer.rate_factors()[name]
    print(
        f"Learning rates of the rings of '{name}', relative to lr (ring k is what stage k added):"
    )
    print("  " + "  ".join(f"{k}: {float(f):.2f}" for k, f in enumerate(factors)))


if __name__ == "__main__":
    main()
