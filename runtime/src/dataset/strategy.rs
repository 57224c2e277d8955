//! Data sets under a strategy.

use crate::{
    Dataset, Error, Result, Strategy,
    dataset::{
        AutoShardPolicy, Deal, DistributedDataset, DistributedGrains, Form, InputContext, InputOptions, Share,
        TensorSpec,
        grains::{check_devices, runs},
        not_batched,
    },
    execution::context,
    value::contract,
};

impl Strategy {
    /// Divides each batch of `dataset` among the replicas: TensorFlow's
    /// `experimental_distribute_dataset`. The batches are global: each has the elements for all
    /// replicas.
    ///
    /// With several workers each makes the call with the same data set and gets the parts of its
    /// replicas, as if all replicas were in one process. With [`AutoShardPolicy::Off`] each has its
    /// own data set, whose elements all go to its replicas.
    ///
    /// Each element goes to one replica, in order. If a batch cannot be divided evenly or is not
    /// full, the last replicas get fewer rows, or tensors without rows: see [`InputOptions::deal`].
    /// With one replica, elements are not divided.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica, or in another strategy's scope; [`Error::InvalidCall`]
    /// for elements that are not batches, if there are several replicas, and for batches that break
    /// a rule of [`StaticShapes`](crate::StaticShapes). If the data set does not give an element
    /// spec, the first step returns that error instead.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, Tensor, dataset};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = dataset::from_tensor_slices(Tensor::from([0, 1, 2, 3, 4]))?.batch(4);
    /// let steps: Vec<_> = strategy.distribute_dataset(batches)?.iter().collect::<Result<_, _>>()?;
    /// assert_eq!(steps[0].values(), [Tensor::from([0, 1]), Tensor::from([2, 3])]);
    /// assert_eq!(steps[1].values(), [Tensor::from([4]), Tensor::from([0i32; 0])]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn distribute_dataset<D: Dataset>(&self, dataset: D) -> Result<DistributedDataset<D::Element>> {
        self.distribute_dataset_with(dataset, InputOptions::new())
    }

    /// Does [`distribute_dataset`](Strategy::distribute_dataset) with options.
    ///
    /// # Errors
    /// As `distribute_dataset`; [`Error::InvalidCall`] for [`AutoShardPolicy::File`] and a data set
    /// that reads no files.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, Tensor, dataset::{self, AutoShardPolicy, InputOptions}};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = dataset::from_tensor_slices(Tensor::from([0, 1, 2, 3, 4, 5]))?.batch(8);
    /// let options = InputOptions::new().auto_shard_policy(AutoShardPolicy::Off);
    /// let step = strategy.distribute_dataset_with(batches, options)?.iter().next().unwrap()?;
    /// assert_eq!(step.values(), [Tensor::from([0, 1, 2, 3]), Tensor::from([4, 5])]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn distribute_dataset_with<D: Dataset>(
        &self,
        dataset: D,
        options: InputOptions,
    ) -> Result<DistributedDataset<D::Element>> {
        let call = "Strategy::distribute_dataset";
        context::require_cross_replica(call, self)?;
        let (replicas, is_own) = (self.num_replicas_in_sync(), options.shard_policy() == AutoShardPolicy::Off);
        self.check_batches(call, dataset.element_spec().as_deref(), replicas)?;
        let form = form(call, &dataset, options, replicas)?;
        Ok(DistributedDataset::new(self, dataset, self.share(form, is_own), options))
    }

    /// Divides each batch of `dataset` among the [grains](Strategy::grains), as
    /// [`distribute_dataset`](Strategy::distribute_dataset) divides it among as many replicas. A
    /// replica gets the parts of its grains, with their numbers.
    ///
    /// With several workers each makes the call with the same data set and gets the parts of its
    /// replicas. A grain that gets no rows still takes part in the step.
    ///
    /// # Errors
    /// As [`distribute_dataset`](Strategy::distribute_dataset); [`Error::InvalidCall`] for replicas
    /// on GPUs.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, Tensor, dataset};
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).grains(3).build()?;
    /// let batches = dataset::from_tensor_slices(Tensor::from([0, 1, 2, 3, 4]))?.batch(5);
    /// let step = strategy.distribute_grains(batches)?.iter().next().unwrap()?;
    /// assert_eq!((step[0].numbers(), step[1].numbers()), (0..2, 2..3));
    /// assert_eq!(step[0].values(), [Tensor::from([0, 1]), Tensor::from([2, 3])]);
    /// assert_eq!(step[1].values(), [Tensor::from([4])]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn distribute_grains<D: Dataset>(&self, dataset: D) -> Result<DistributedGrains<D::Element>> {
        self.distribute_grains_with(dataset, InputOptions::new())
    }

    /// Does [`distribute_grains`](Strategy::distribute_grains) with options.
    ///
    /// # Errors
    /// As `distribute_grains`; [`Error::InvalidCall`] for [`AutoShardPolicy::Off`], by which each
    /// worker has data of its own, and for [`AutoShardPolicy::File`] and a data set that reads no
    /// files.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, dataset::{self, AutoShardPolicy, Deal, InputOptions}};
    /// let strategy = MirroredStrategy::builder(["cpu:0", "cpu:1"]).grains(4).build()?;
    /// let batches = || dataset::range(0, 10, 1).map(|batches| batches.batch(10));
    /// let options = InputOptions::new().deal(Deal::Balanced);
    /// let step = strategy.distribute_grains_with(batches()?, options)?.iter().next().unwrap()?;
    /// assert_eq!(step[1].values().iter().map(|part| part.count()).collect::<Vec<_>>(), [2, 2]);
    /// let options = options.auto_shard_policy(AutoShardPolicy::Off);
    /// assert!(strategy.distribute_grains_with(batches()?, options).is_err());
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn distribute_grains_with<D: Dataset>(
        &self,
        dataset: D,
        options: InputOptions,
    ) -> Result<DistributedGrains<D::Element>> {
        let call = "Strategy::distribute_grains";
        context::require_cross_replica(call, self)?;
        check_devices(call, self)?;
        if options.shard_policy() == AutoShardPolicy::Off {
            let expected = "one data set for all workers, whose batches are dealt to grains";
            return Err(Error::invalid(call, "auto_shard_policy", expected, "Off"));
        }
        let grains = self.grains();
        self.check_batches(call, dataset.element_spec().as_deref(), grains)?;
        let form = form(call, &dataset, options, grains)?;
        let runs = runs(self);
        let local = runs.first().map_or(0, |run| run.start)..runs.last().map_or(0, |run| run.end);
        let share = Share { form, replicas: grains, local, own: false };
        Ok(DistributedGrains::new(self, DistributedDataset::new(self, dataset, share, options)))
    }

    /// Calls `dataset_fn` to make a data set of per-replica batches. Each step takes one element
    /// for each replica, undivided. If the last step has too few, the last replicas get tensors
    /// without rows.
    ///
    /// With several workers it is called once in each and makes the data set of that worker's
    /// replicas. All workers take the same number of steps: see
    /// [`DistributedIterator`](crate::DistributedIterator).
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica, or in another strategy's scope; the error of
    /// `dataset_fn`.
    ///
    /// ```
    /// use consonance::{Dataset, MirroredStrategy, Tensor, dataset};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let batches = strategy.distribute_datasets_from_function(|context| {
    ///     let numbers = dataset::from_tensor_slices(Tensor::from([0, 1, 2, 3, 4]))?;
    ///     let own = numbers.shard(context.num_input_pipelines, context.input_pipeline_id);
    ///     Ok(own.batch(context.get_per_replica_batch_size(4)?))
    /// })?;
    /// let last = batches.iter().last().unwrap()?;
    /// assert_eq!(last.values(), [Tensor::from([4]), Tensor::from([0i32; 0])]);
    /// # Ok::<(), consonance::Error>(())
    /// ```
    pub fn distribute_datasets_from_function<D: Dataset>(
        &self,
        dataset_fn: impl FnOnce(InputContext) -> Result<D>,
    ) -> Result<DistributedDataset<D::Element>> {
        self.distribute_datasets_from_function_with(dataset_fn, InputOptions::new())
    }

    /// Does [`distribute_datasets_from_function`](Strategy::distribute_datasets_from_function) with
    /// options. The options that divide data have no effect: the function divides them.
    ///
    /// # Errors
    /// As `distribute_datasets_from_function`.
    pub fn distribute_datasets_from_function_with<D: Dataset>(
        &self,
        dataset_fn: impl FnOnce(InputContext) -> Result<D>,
        options: InputOptions,
    ) -> Result<DistributedDataset<D::Element>> {
        context::require_cross_replica("Strategy::distribute_datasets_from_function", self)?;
        let (pipelines, id) = self.workers().map_or((1, 0), |workers| (workers.count(), workers.worker()));
        let dataset = dataset_fn(InputContext::new(pipelines, id, self.num_replicas_in_sync()))?;
        self.check_batches("Strategy::distribute_datasets_from_function", dataset.element_spec().as_deref(), 1)?;
        Ok(DistributedDataset::new(self, dataset, self.share(Form::Each, true), options))
    }

    /// Refuses batches that are not full, or do not divide evenly into `parts`, if the strategy has
    /// static shapes without dynamic batches. Each step is checked, too.
    fn check_batches(&self, call: &'static str, specs: Option<&[TensorSpec]>, parts: usize) -> Result<()> {
        if self.contract().is_none_or(|contract| contract.dynamic_batch) {
            return Ok(());
        }
        let is_full = |spec: &&TensorSpec| match spec.shape.first() {
            Some(rows) => rows.is_some_and(|rows| rows % parts == 0),
            None => true,
        };
        match specs.into_iter().flatten().find(|spec| !is_full(spec)) {
            None => Ok(()),
            Some(spec) => {
                let found = format!("{spec} for {parts}");
                Err(contract::not_full(call, spec.path.to_string(), found))
            }
        }
    }

    fn share(&self, form: Form, own: bool) -> Share {
        Share { form, replicas: self.num_replicas_in_sync(), local: self.local_replicas(), own }
    }
}

/// Returns how the elements of a data set are divided into parts.
fn form<D: Dataset>(call: &'static str, dataset: &D, options: InputOptions, parts: usize) -> Result<Form> {
    let specs = dataset.element_spec();
    if parts > 1
        && let Some(scalar) = specs.iter().flatten().find(|spec| spec.shape.is_empty())
    {
        return Err(not_batched(&scalar.path, &scalar.to_string()).of_call_named(call));
    }
    if parts > 1
        && dataset.has_single_rows()
        && let Some(row) = specs.iter().flatten().next()
    {
        return Err(not_batched(&row.path, &format!("single rows, {row}")).of_call_named(call));
    }
    let policy = options.shard_policy();
    if policy == AutoShardPolicy::File && !dataset.reads_files() {
        return Err(Error::invalid(call, "dataset", "one that reads files, to be divided by files", "none"));
    }
    let by_policy = match policy {
        AutoShardPolicy::Data => Deal::Chunked,
        AutoShardPolicy::Auto if !dataset.reads_files() => Deal::Chunked,
        AutoShardPolicy::Auto | AutoShardPolicy::File | AutoShardPolicy::Off => Deal::Packed,
    };
    let rows = || specs.as_ref()?.first()?.shape.first().copied().flatten();
    Ok(Form::new(options.deal_or(by_policy), dataset.batch_size().or_else(rows), parts))
}
