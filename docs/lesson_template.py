"""NN · What the lesson teaches
============================

Say in one sentence what the reader will be able to do.

.. overview::
   :teaching: 20
   :exercises: 10

   .. objectives::

      - Begin with a verb, and name what can be done afterwards.
      - Have three of them in all.
      - Have one key point for each, at the end.

   .. prereq::

      - :doc:`/lessons/02_tensors_and_devices`, for what ``to`` does
"""

# %%
# Begin with the reader's own situation. The first use of a term of the glossary links to
# it: a :term:`tensor` is a table of numbers. Later uses have no link.

import matplotlib.pyplot as plt
import torch

from gpulesson.device import choose_device

# %%
# A heading says what the reader will know
# ----------------------------------------
#
# If this section executes a fact of ``docs/coverage.rst``, ``.. covers::`` and its id mark it.
#
# Then an intention or a question, before the cell. How many numbers will it print?

device = choose_device()
a = torch.arange(6.0, device=device).reshape(2, 3)
print(a.sum(dim=0))

# %%
# Say what was printed, and why; it must be true on every machine. Then the rule
# to keep. **One bold phrase carries the rule of a section.**
#
# .. question:: What does ``a.sum(dim=1)`` have, instead?
#
#    - Three numbers, one a column.
#
#      No. The dimension that you name is the one that disappears; this is ``dim=0``.
#
#    - Two numbers, one a row.
#
#      Yes. Dimension 1 counts the columns, and they are added up.
#
# A cell has 3 to 12 lines, and 20 at most. What does not teach is folded:

# fold: Draw the sums
fig, ax = plt.subplots(figsize=(7, 3.5), layout="constrained")
ax.bar(["first", "second", "third"], a.sum(dim=0).tolist())
ax.set(xlabel="column", ylabel="sum", title="The sum of each column")
plt.show()

# %%
# .. instructor-note::
#
#    What do learners get wrong here, and what helps them?
#
# Exercise
# --------
#
# .. exercise:: What is to be done
#    :minutes: 10
#    :difficulty: easy
#    :starter: exercise_NN.py
#
#    1. **Predict:** what will the function return?
#    2. Write it.
#
#    To check it: ``python -m gpulesson check exercise_NN.py``.
#
# .. solution::
#    :file: solution_NN.py
#
#    Why it is so.
#
# .. keypoints::
#
#    - What can be done now, in the words of the first objective.
#    - The same for the second.
#    - The same for the third.
#
# **Next:** say what follows, with a link such as :doc:`/lessons/04_training_loop`.
