"""Time left: of steps that cost differently, from what the ones before have taken."""

from compevo_core.runtime.durations import Steps


def test_the_time_left_goes_by_what_steps_cost():
    now, said = [100.0], list[str]()
    steps = Steps([1.0, 3.0, 4.0], said.append, lambda: now[0])
    steps.begin("ridge")
    now[0] += 10.0
    steps.begin("trees")
    now[0] += 110.0
    steps.begin("validation")
    # 120 s for costs of four; four are left.
    assert said == ["1/3 ridge", "2/3 trees, about 1m10s left", "3/3 validation, about 2m00s left"]
