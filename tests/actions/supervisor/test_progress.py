"""How far a command is, read off files that grow."""

from __future__ import annotations

from pathlib import Path

from tracecore.actions.supervisor.progress import MAX_BYTES, Tracker


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_steps_are_progress_and_their_repetition_is_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker([log])
    assert tracker.look() == (False, False)
    add(log, "loading\n")
    assert tracker.look() == (False, True)
    assert tracker.speaks is False
    add(log, "step 10 loss 2.5\nnoise\n")
    assert tracker.look() == (True, True)
    assert (tracker.step, tracker.speaks) == (10, True)
    assert tracker.look() == (False, False)
    add(log, "step 10 loss 2.5\n")
    assert tracker.look() == (False, True)
    add(log, "step 11 loss 2.4\n")
    assert tracker.look() == (True, True)
    assert tracker.step == 11


def test_a_new_epoch_counts_from_nothing_and_is_progress(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker([log])
    add(log, "Epoch 1 step 900 loss 2.5\n")
    tracker.look()
    add(log, "Epoch 2 step 0 loss 2.5\n")
    assert tracker.look() == (True, True)
    assert tracker.step == 900


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker([log])
    add(log, "step 1")
    assert tracker.look() == (False, True)
    assert tracker.step is None
    add(log, "23 loss 2.0\n")
    assert tracker.look() == (True, True)
    assert tracker.step == 123


def test_a_bar_that_is_redrawn_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker([log])
    add(log, " 10%|█         | 10/100 [00:05<00:45,  2.0it/s]\r 11%|█         | 11/100 [00:05<00:45,  2.0it/s]\r")
    assert tracker.look() == (True, True)
    assert tracker.step == 11


def test_one_step_in_a_flood_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker([log])
    noise = "INFO fetched another shard of the training set from the bucket\n"
    add(log, noise * 5000 + "step 77 loss 1.0\n" + noise * 5000)
    assert tracker.look() == (True, True)
    assert tracker.step == 77


def test_more_than_the_bound_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker([log])
    add(log, "step 1 loss 1.0\n" + "x" * (MAX_BYTES + 10) + "\nstep 2 loss 1.0\n")
    assert tracker.look() == (True, True)
    assert tracker.step == 2


def test_evaluation_is_life_though_the_step_stands_still(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker([log])
    add(log, "step 10 loss 2.5\n")
    tracker.look()
    for percent in (10, 20):
        add(log, f"Evaluating:  {percent}%|█         | {percent}/100 [00:05<00:45,  2.0it/s]\n")
        assert tracker.look() == (True, True)
    assert tracker.step == 10


def test_a_written_checkpoint_is_remembered(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tracker = Tracker([log])
    add(log, "  successfully saved checkpoint from iteration     500 to /ckpt\n")
    assert tracker.look() == (True, True)
    assert tracker.checkpoint == "500"


def test_both_outputs_are_looked_at(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    tracker = Tracker([out, err])
    add(out, "step 5 loss 1.0\n")
    add(err, "a warning\n")
    assert tracker.look() == (True, True)
    add(err, "step 6 loss 1.0\n")
    assert tracker.look() == (True, True)
    assert tracker.step == 6
