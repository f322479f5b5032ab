"""AdamW over a decoder's weights: gradient norm, clipping, update, and its state by name.

Called by the learner and by `state`. The arithmetic is torch's fused AdamW. Weights narrower than float32 are kept
twice, since a small step would round away in them: the optimiser moves float32 masters and the weights follow.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from huilu.config.tree import Optimizer
from huilu.errors import BadWeights

_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """Owns the optimiser's state of one decoder."""

    def __init__(self, decoder: nn.Module, settings: Optimizer) -> None:
        self._settings = settings
        self._weights = dict(decoder.named_parameters())
        self.reset()

    def reset(self) -> None:
        """Forget every moment; the weights as they are now are where it goes on from."""
        self.num_steps = 0
        self._masters = {
            name: weight if weight.dtype == torch.float32 else nn.Parameter(weight.detach().float())
            for name, weight in self._weights.items()
        }
        # Norms and biases are not decayed, as everybody does.
        decayed = [master for master in self._masters.values() if master.ndim >= 2]
        kept = [master for master in self._masters.values() if master.ndim < 2]
        self._torch = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": self._settings.weight_decay},
                {"params": kept, "weight_decay": 0.0},
            ],
            lr=self._settings.learning_rate,
            betas=self._settings.betas,
            eps=self._settings.eps,
            fused=True,
        )

    def gradient_norm(self) -> float:
        """The norm over all gradients, before clipping."""
        for name, master in self._masters.items():
            weight = self._weights[name]
            if master is not weight and weight.grad is not None:
                master.grad = weight.grad.float()
        gradients = [master.grad for master in self._masters.values() if master.grad is not None]
        return float(nn.utils.get_total_norm(gradients))

    def apply(self, rate: float, gradient_norm: float) -> None:
        """Clip, take one step at this learning rate, and clear the gradients."""
        if gradient_norm > self._settings.max_grad_norm:
            masters, norm = self._masters.values(), torch.tensor(gradient_norm)
            nn.utils.clip_grads_with_norm_(masters, self._settings.max_grad_norm, norm)
        for group in self._torch.param_groups:
            group["lr"] = rate
        self._torch.step()
        with torch.no_grad():
            for name, master in self._masters.items():
                if master is not self._weights[name]:
                    self._weights[name].copy_(master)
        self.num_steps += 1
        self.clear_gradients()

    def clear_gradients(self) -> None:
        """Zero the gradients in place: giving gigabytes back and faulting them in again costs more than a step."""
        for name, master in self._masters.items():
            for parameter in (self._weights[name], master):
                if parameter.grad is not None:
                    parameter.grad.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, float32: both moments of every weight, and its master where it has one."""
        found: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            state = self._torch.state.get(master, {})
            found |= {f"{moment}.{name}": state[moment] for moment in _MOMENTS if moment in state}
            if master is not self._weights[name]:
                found[f"master.{name}"] = master.detach()
        return found

    def restore(self, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Take the state that `tensors` gave after `num_steps`. Raises BadWeights when it is another model's."""
        self.reset()
        wanted = {
            f"{kind}.{name}": tuple(weight.shape)
            for name, weight in self._weights.items()
            for kind in self._kinds(name, num_steps)
        }
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != wanted:
            odd = sorted(set(found.items()) ^ set(wanted.items()))[0]
            raise BadWeights(
                f"the learner's state has other tensors than this model, {odd[0]} {list(odd[1])} among them",
                fix="resume with the job file that the run was started with",
            )
        for name, master in self._masters.items():
            with torch.no_grad():
                if master is not self._weights[name]:
                    master.copy_(tensors[f"master.{name}"])
            if num_steps:
                moments = {moment: tensors[f"{moment}.{name}"].to(master.device, copy=True) for moment in _MOMENTS}
                step = torch.tensor(float(num_steps), device=master.device)
                self._torch.state[master] = {"step": step, **moments}
        self.num_steps = num_steps

    def _kinds(self, name: str, num_steps: int) -> tuple[str, ...]:
        moments = _MOMENTS if num_steps else ()
        return moments if self._masters[name] is self._weights[name] else (*moments, "master")
