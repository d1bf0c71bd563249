"""Test torchtitan's own trainer with an offloaded optimizer, on the simulated device.

torchtitan asks for the device when it is imported. So this test shares no process with others.
"""

from pathlib import Path

import pytest
import torch
from device import collectives


def test_torchtitans_trainer_has_the_bits_of_steps_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer runs on the device alone: `torch.cpu` lacks what it asks of a device."""
    collectives.register()
    from frameworks import titan_job

    monkeypatch.chdir(tmp_path)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # any port that is free
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **address}.items():
        monkeypatch.setenv(name, value)
    Path("job.toml").write_text(titan_job.JOB, encoding="utf-8")
    trainer = titan_job.new_trainer("job.toml")
    expected = titan_job.weights_of_a_loop(trainer)
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()
    (optimizer,) = trainer.optimizers
    with optimizer:
        assert optimizer.report().steps == trainer.step == 3
        states = [optimizer.state[param] for param in optimizer._host_params]
        assert {each.device.type for values in states for each in values.values()} == {"cpu"}

    (model,) = trainer.model_parts
    for param, value in zip(model.parameters(), expected, strict=True):
        assert torch.equal(param.cpu(), value)
