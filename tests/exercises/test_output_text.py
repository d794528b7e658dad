"""What is read in a program's output."""

from __future__ import annotations

import pytest

from gpulesson.exercises.rules import output_text


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("accuracy 0.9583: 345 of 360", [0.9583, 345 / 360]),
        ("Accuracy: 95.83%", [0.9583]),
        ("test acc = 95.8 % after 3 epochs", [0.958]),
        ("Test accuracy of the model on 360 images: 95 %", [0.95]),
        ("accuracy 0.93, loss 0.25", [0.93]),
        ("acc: 95.83", [0.9583]),
        ("95.83% accuracy", [0.9583]),
        ("loss 0.313, 345 of 360 right", [345 / 360]),
        ("accuracy 345/360", [345 / 360]),
        ("got 345 of 360, accurate enough", [345 / 360]),
        ("345/360 right, accuracy 0.958", [0.958]),
        ("accuracy 0.9, best accuracy 0.95", [0.9, 0.95]),
        ("epoch 3 loss 0.3", []),
        ("accuracy", []),
        ("accuracy 1", [1.0]),
        ("accuracy 100%", [1.0]),
        ("accuracy......0.95", [0.95]),
        ("accuracy____95.8 %", [0.958]),
    ],
)
def test_accuracies_in_a_line_of_output(text, values):
    assert [claim.value for claim in output_text.claims(text)] == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("finished: epoch 10 of 10", []),
        ("Epoch 10/10: 345/360 right", [345 / 360]),
        ("epoch 10/10, accuracy 345/360", [345 / 360]),
        ("accuracy 0.9583 after 230 of 230 steps", [0.9583]),
        ("345 of 360 right", [345 / 360]),
    ],
)
def test_a_count_of_epochs_is_no_accuracy(text, values):
    assert [claim.value for claim in output_text.claims(text, 360)] == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "of_training"),
    [
        ("training accuracy 0.99", True),
        ("Train acc: 99 %", True),
        ("train 0.99, test accuracy 0.95", False),
        ("validation accuracy after training: 0.95", False),
        ("accuracy 0.95, constrained", False),
    ],
)
def test_a_line_about_the_training_part(text, of_training):
    assert output_text.of_training(text) == of_training


def test_the_tolerance_is_half_of_the_last_digit():
    (percent,), (digits,) = output_text.claims("accuracy 95.8%"), output_text.claims("accuracy 0.9583")
    assert percent.tolerance == pytest.approx(0.0005, rel=0.01)
    assert digits.tolerance == pytest.approx(0.00005, rel=0.05)
