//! `tf.distribute.ReplicaContext.all_gather`.

use consonance::{MirroredStrategy, PerReplica, Result, Tensor};
use std::collections::BTreeMap;

#[test]
fn a_single_tensor() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let result = strategy.run(|context| context.all_gather(Tensor::from([1, 2, 3]), 0))?;
    let expected = Tensor::from([1, 2, 3, 1, 2, 3]);
    assert_eq!(strategy.local_results(&result), [expected.clone(), expected]);
    Ok(())
}

#[test]
fn a_list() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let result = strategy.run(|context| {
        let (value_1, value_2) = (Tensor::from([1, 2, 3]), Tensor::from([[1, 2], [3, 4]]));
        context.all_gather([value_1, value_2], 0)
    })?;
    let expected = [Tensor::from([1, 2, 3, 1, 2, 3]), Tensor::from([[1, 2], [3, 4], [1, 2], [3, 4]])];
    assert_eq!(strategy.local_results(&result), [expected.clone(), expected]);
    Ok(())
}

/// The page gives `'a': [1, 2]` for the parts `[0]` and `[1]`; it is `[0, 1]`.
#[test]
fn a_dict_of_different_shapes() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let dict = |a, b| BTreeMap::from([("a", a), ("b", b)]);
    let value = PerReplica::new(vec![
        dict(Tensor::from([0]), Tensor::from([[0, 1]])),
        dict(Tensor::from([1]), Tensor::from([[2, 3], [4, 5]])),
    ]);
    let result = strategy.run_with(value, |context, value| context.all_gather(value, 0))?;
    let expected = dict(Tensor::from([0, 1]), Tensor::from([[0, 1], [2, 3], [4, 5]]));
    assert_eq!(result.values(), [expected.clone(), expected]);
    Ok(())
}

#[test]
fn shapes_may_differ_along_the_axis_alone() -> Result<()> {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    let gather = |axis: isize| {
        let value = PerReplica::new(vec![Tensor::new([1, 2, 3], &[0; 6])?, Tensor::new([1, 3, 3], &[0; 9])?]);
        strategy.run_with(value, move |context, value| context.all_gather(value, axis))
    };
    assert_eq!(gather(1)?[0].shape(), [1, 5, 3]);
    assert!(gather(0).is_err() && gather(2).is_err());
    Ok(())
}
