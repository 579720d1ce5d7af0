"""A process of a small data-parallel training with PyTorch.

torchrun starts two processes. Each process prints a line for each step to standard error.
"""

import sys
import time

import torch
import torch.distributed

STEPS = 20

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(1)
weights = torch.randn(256, 256, requires_grad=True)
# Each process has batches of its own. The weights stay equal only if the gradients are exchanged.
torch.manual_seed(2 + rank)
for number in range(STEPS):
    loss = (torch.randn(512, 256) @ weights).square().mean()
    loss.backward()
    torch.distributed.all_reduce(weights.grad)
    with torch.no_grad():
        weights -= 0.01 * weights.grad
    weights.grad = None
    print(f"rank {rank} step {number}", file=sys.stderr)
print(f"rank {rank} trained, checksum {weights.detach().sum().item():.4f}", file=sys.stderr)
time.sleep(600)
