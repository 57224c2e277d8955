//! The texts that a newcomer prints, and the errors after a forgotten step.

mod fields;

use consonance::{
    Communicator, Dataset, Error, MirroredStrategy, OneDeviceStrategy, Strategy, Tensor, Variable, dataset,
    dataset::InputContext,
};
use fields::{found, refusal};

#[test]
fn strategies_print_their_devices_once() {
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    assert_eq!(format!("{strategy} {strategy:?}"), "MirroredStrategy(cpu:0, cpu:1) MirroredStrategy(cpu:0, cpu:1)");
    let one = OneDeviceStrategy::new("cpu:3").unwrap();
    assert_eq!(format!("{one:?}"), "OneDeviceStrategy(cpu:3)");
    assert_eq!(format!("{:?}", Strategy::default_strategy()), "DefaultStrategy(cpu:0)");
}

#[test]
fn variables_print_their_value_unless_it_is_large_or_being_written() {
    let strategy = MirroredStrategy::new(["cpu:0"]).unwrap();
    let small = strategy.variable(|| Tensor::from([1.0f32, 2.0])).unwrap();
    let text = format!("{small:?}");
    assert!(text.ends_with(", f32[2] [1, 2], OnWrite, aggregation None, MirroredStrategy(cpu:0))"), "{text}");
    let shown = strategy.update(&small, |_| Ok(format!("{small:?}"))).unwrap();
    assert!(shown[0].contains(", f32[2], OnWrite"), "{shown:?}");
    let large = Variable::new(Tensor::zeros(consonance::DType::F32, [100])).unwrap();
    assert!(format!("{large:?}").contains(", f32[100], OnWrite"));
}

#[test]
fn a_struct_with_a_communicator_can_derive_debug() {
    #[derive(Debug)]
    struct Engine {
        #[allow(dead_code, reason = "only printed")]
        communicator: Communicator,
    }
    let engine = Engine { communicator: Communicator::threads(1).remove(0) };
    assert_eq!(format!("{engine:?}"), "Engine { communicator: Communicator(rank 0 of 1) }");
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let texts = strategy.run(|replica| Ok(format!("{replica:?}"))).unwrap();
    assert_eq!(texts[1], "ReplicaContext(replica 1 of 2, MirroredStrategy(cpu:0, cpu:1))");
}

#[test]
fn an_input_context_names_no_other_library() {
    assert_eq!(InputContext::new(2, 1, 4).to_string(), "InputContext(input pipeline id 1, total: 2)");
}

#[test]
fn an_unbatched_table_is_refused() {
    let rows = || dataset::from_tensor_slices((Tensor::from([[1.0f32, 2.0]; 4]), Tensor::from([[1], [2], [3], [4]])));
    let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"]).unwrap();
    let refused = |error: Option<Error>| {
        let error = error.unwrap();
        assert_eq!(refusal(&error), ("Strategy::distribute_dataset", "value/0", None));
        assert_eq!(found(&error), "single rows, f32[2]");
    };
    refused(strategy.distribute_dataset(rows().unwrap()).err());
    refused(strategy.distribute_dataset(rows().unwrap().shuffle(1).take(2)).err());
    let boxed: Box<dyn Dataset<Element = (Tensor, Tensor)>> = Box::new(rows().unwrap());
    refused(strategy.distribute_dataset(boxed).err());
    assert!(strategy.distribute_dataset(rows().unwrap().batch(2)).is_ok());
    // One replica gets the rows as they are.
    let alone = OneDeviceStrategy::new("cpu:0").unwrap();
    assert_eq!(alone.distribute_dataset(rows().unwrap()).unwrap().iter().count(), 4);
}
